# Every target is one line into scripts/, so that Windows users type the same without make: see scripts/README.md.
PYTHON ?= python3
.DEFAULT_GOAL := help
.PHONY: help setup demo demo-ui parity doctor formats budgets bench workflows test test-wide test-parallel test-versions test-host test-templates test-web package fuzz endurance test-all lint clean

help: ## list these targets
	@$(PYTHON) scripts/help.py
setup: ## make .venv and a ComfyUI inside the clone (every other target does it first)
	@$(PYTHON) scripts/setup.py $(ARGS)
demo: ## prove the encoder in a running ComfyUI; CHECKPOINT=/path/to/file-or-folder proves it on your own weights
	@$(PYTHON) scripts/demo.py $(if $(CHECKPOINT),--checkpoint "$(CHECKPOINT)") $(ARGS)
demo-ui: ## the same ComfyUI left open in the browser, with the nodes and example workflows
	@$(PYTHON) scripts/demo.py --ui $(if $(CHECKPOINT),--checkpoint "$(CHECKPOINT)") $(ARGS)
parity: ## compare with transformers layer by layer; CHECKPOINT=... for your own, ARGS="--against OTHER" for two
	@$(PYTHON) scripts/parity.py $(if $(CHECKPOINT),"$(CHECKPOINT)") $(ARGS)
doctor: ## say what a checkpoint is and what is wrong with it; CHECKPOINT=/path/to/file-or-folder
	@$(PYTHON) scripts/doctor.py $(if $(CHECKPOINT),"$(CHECKPOINT)") $(ARGS)
formats: ## every format on generated files: doctor, load, error, bytes, memory; ARGS=--document for docs/formats.md
	@$(PYTHON) scripts/formats.py $(ARGS)
budgets: ## partial loading: budgets x formats, bits, bytes, peak, time; writes docs/partial-loading.md; ARGS=--demo is short
	@$(PYTHON) scripts/budgets.py $(ARGS)
bench: ## speed and memory against others, with every target; ARGS="encode --rounds 3" chooses, ARGS=--table only prints
	@$(PYTHON) scripts/bench.py $(ARGS)
workflows: ## check the bundled workflows against a live ComfyUI and comfy-lint, and run their encode part
	@$(PYTHON) scripts/workflows.py $(ARGS)
endurance: ## 300 mixed prompts in one ComfyUI, ComfyUI killed, bad disks: minutes; ARGS="--prompts 60 --only prompts" is short
	@$(PYTHON) scripts/endurance.py $(ARGS)
test: ## the tests; ARGS="-k tokens" passes arguments to pytest
	@$(PYTHON) scripts/test.py $(ARGS)
test-wide: ## the encoder at its real width against transformers: 13 GB of disk, under 9 GB of memory, minutes
	@$(PYTHON) scripts/test_wide.py $(ARGS)
test-parallel: ## the encoder over 2 and 4 ranks on this CPU, and the worker: processes of their own, minutes
	@$(PYTHON) scripts/test_parallel.py $(ARGS)
test-versions: ## the official path of transformers 4.57, 5.5, 5.15 and the newest, and the patches; writes docs/transformers-*.md
	@$(PYTHON) scripts/test_versions.py
test-host: ## the tests that need a ComfyUI, against yours: COMFYUI_PATH=/path/to/ComfyUI
	@$(PYTHON) scripts/test_host.py $(ARGS)
test-templates: ## our nodes put into ComfyUI's own H3 templates, checked and run: COMFYUI_PATH=/path/to/ComfyUI (0.30 or newer)
	@$(PYTHON) scripts/test_templates.py $(ARGS)
test-web: ## the pack in a real ComfyUI's page: headless Chromium, screenshots in output/web; COMFYUI_PATH for yours
	@$(PYTHON) scripts/test_web.py $(ARGS)
package: ## the zip for the registry: validated, packed by comfy-cli, looked through, tried in a fresh ComfyUI
	@$(PYTHON) scripts/package.py $(ARGS)
fuzz: ## coverage-guided fuzzing of the readers, 10 minutes each; ARGS="--minutes 1 --only gguf" chooses
	@$(PYTHON) scripts/fuzz.py $(ARGS)
test-all: ## every check there is, one after another, with a table at the end
	@$(PYTHON) scripts/test_all.py
lint: ## style, types, dead and duplicate code, links, lengths, JavaScript; ARGS="--only types links" chooses
	@$(PYTHON) scripts/lint.py $(ARGS)
clean: ## delete what set-up, demo and tests made (.venv, .comfyui, output)
	@$(PYTHON) scripts/clean.py

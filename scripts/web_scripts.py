"""What is run inside ComfyUI's page: functions in JavaScript, as text. web_page.py is their only caller."""

from __future__ import annotations

NODES = """() => window.app.graph.nodes.map((node) => ({
  id: Number(node.id), type: node.type, title: node.title, known: node.type in window.LiteGraph.registered_node_types,
  inputs: (node.inputs ?? []).map((input) => [input.name, input.link ?? null]),
  widgets: (node.widgets ?? []).filter((w) => w.serialize !== false).map((w) => [w.name, w.value]),
}))"""

# What the server says of a run, kept as it comes
HEAR = """() => {
  const heard = { progress: [], text: [], errors: [], ended: 0, stopped: 0 };
  window.heard = heard;
  const { api } = window.app;
  const keep = (name, list) => api.addEventListener(name, (event) =>
    list.push(JSON.parse(JSON.stringify(event.detail ?? null))));
  keep("progress", heard.progress);
  keep("progress_text", heard.text);
  keep("execution_error", heard.errors);
  api.addEventListener("execution_success", () => { heard.ended += 1; });
  api.addEventListener("execution_interrupted", () => { heard.ended += 1; heard.stopped += 1; });
}"""

BOXES = """() => window.app.graph.nodes.map((node) => (
  { id: Number(node.id), type: node.type, box: Array.from(node.getBounding()) }))"""

DROP = """({ name, text }) => {
  const data = new DataTransfer();
  data.items.add(new File([text], name, { type: "application/json" }));
  const target = window.app.canvas.canvas;
  const at = { clientX: 600, clientY: 500, bubbles: true, cancelable: true, dataTransfer: data };
  for (const kind of ["dragenter", "dragover", "drop"]) target.dispatchEvent(new DragEvent(kind, at));
}"""

LINK = """([origin, slot, target, name]) => {
  const { graph } = window.app;
  const to = graph.getNodeById(target);
  const place = to.inputs.findIndex((input) => input.name === name || input.widget?.name === name);
  if (place < 0) throw new Error(`no input ${name} on node ${target}: ${to.inputs.map((input) => input.name)}`);
  if (origin === null) to.disconnectInput(place);
  else if (!graph.getNodeById(origin).connect(slot, to, place)) throw new Error(`no link to ${name}`);
}"""

SET = """([id, name, value]) => {
  const node = window.app.graph.getNodeById(id);
  const widget = node.widgets.find((each) => each.name === name);
  widget.value = value;
  widget.callback?.(value, window.app.canvas, node);
}"""

SELECT = """(id) => {
  const { canvas, graph } = window.app;
  canvas.selectNode?.(graph.getNodeById(id));
  canvas.onSelectionChange?.();
}"""

REMOVE = "(id) => window.app.graph.remove(window.app.graph.getNodeById(id))"

CHIPS = """(id) => {
  const row = document.querySelector(`[data-h3te-node="${id}"]`);
  const chips = [...(row?.querySelectorAll("button") ?? [])].map((chip) => ({
    label: chip.dataset.label, text: chip.textContent, told: chip.getAttribute("aria-label"),
    state: [...chip.classList].find((name) => name !== "h3te-chip")?.replace("h3te-", ""),
    fixed: chip.getAttribute("aria-disabled") === "true", stop: chip.tabIndex }));
  return { chips, note: row?.querySelector(".h3te-note")?.textContent ?? "", there: Boolean(row) };
}"""

MARK_FIELD = """(id) => {
  window.app.graph.getNodeById(id).widgets.find((w) => w.name === "prompt").element.dataset.h3teField = id;
}"""

TEXT = """(id) => {
  const drawn = document.querySelector(`[data-node-id="${id}"]`)?.innerText ?? "";
  const widgets = window.app.graph.getNodeById(id).widgets ?? [];
  const said = widgets.filter((w) => w.name.startsWith("$$")).map((w) => String(w.value ?? ""));
  const read = (html) => new DOMParser().parseFromString(html, "text/html").body.textContent; // as the page sets it
  return [drawn, ...said.map(read)].join("\\n");
}"""

FIT = """([ids, scale]) => {
  const { canvas, graph } = window.app;
  const nodes = graph.nodes.filter((node) => !ids.length || ids.includes(Number(node.id)));
  const boxes = nodes.map((node) => Array.from(node.getBounding()));
  if (!ids.length) boxes.push(...(graph._groups ?? []).map((group) => Array.from(group._bounding)));
  const left = Math.min(...boxes.map((b) => b[0])), top = Math.min(...boxes.map((b) => b[1]));
  const width = Math.max(...boxes.map((b) => b[0] + b[2])) - left;
  const height = Math.max(...boxes.map((b) => b[1] + b[3])) - top;
  const view = canvas.canvas.getBoundingClientRect();
  const fitted = scale ?? Math.min((view.width - 140) / width, (view.height - 160) / height, 2);
  canvas.deselectAll?.();
  document.activeElement?.blur();
  canvas.min_font_size_for_lod = 0;
  canvas.ds.scale = fitted;
  canvas.ds.offset = [(view.width / fitted - width) / 2 - left, (view.height / fitted - height) / 2 - top];
  canvas.setDirty(true, true);
}"""

VIEW_OF = """(ids) => {
  const { canvas, graph } = window.app;
  const view = canvas.canvas.getBoundingClientRect(), { scale, offset } = canvas.ds;
  const boxes = ids.map((id) => Array.from(graph.getNodeById(id).getBounding()));
  const x = Math.min(...boxes.map((b) => b[0])), y = Math.min(...boxes.map((b) => b[1]));
  const right = Math.max(...boxes.map((b) => b[0] + b[2])), bottom = Math.max(...boxes.map((b) => b[1] + b[3]));
  const clip = { x: view.x + (x + offset[0]) * scale - 12, y: view.y + (y + offset[1]) * scale - 12,
    width: (right - x) * scale + 24, height: (bottom - y) * scale + 24 };
  clip.x = Math.max(0, clip.x); clip.y = Math.max(0, clip.y);
  clip.width = Math.min(clip.width, innerWidth - clip.x); clip.height = Math.min(clip.height, innerHeight - clip.y);
  return clip;
}"""

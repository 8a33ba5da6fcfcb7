// The row of chips under a prompt, as elements: drawn from a description, told apart by more than colour.
//
// Contract: `makeChips(node)` -> {element, margin, height(), show(description), start(), stop()}. One stop of the Tab
// key for the row, arrows inside, Enter and Space insert. Texts are set as text: file names and prompts are people's.
import { app } from "../../scripts/app.js";

import { insert, select } from "./prompt.js";
import { addStyle } from "./style.js";
import { words } from "./words.js";

const MARGIN = 6; // around the row on the canvas, in its units
const ONE_ROW = 22;
const SIGNS = { free: "", named: "✓ ", lacking: "⚠ ", unsure: "? " };
const STEPS = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 };

export function makeChips(node) {
  addStyle();
  const element = made("div", "h3te-chips");
  const row = made("div", "h3te-row");
  element.append(row);
  row.setAttribute("role", "group");
  row.addEventListener("keydown", (event) => onKey(event, row));
  element.addEventListener("pointerdown", (event) => onDrawnNode(element) && event.stopPropagation());
  element.addEventListener("wheel", (event) => toCanvas(event, element), { passive: false });

  let shown = "";
  let rows = ONE_ROW;
  const sizes = new ResizeObserver(() => {
    if (!row.offsetHeight || row.offsetHeight === rows) return;
    rows = row.offsetHeight;
    refit(node);
  });
  return {
    element,
    margin: MARGIN,
    height: () => rows + 2 * MARGIN,
    start: () => sizes.observe(row),
    stop: () => sizes.disconnect(),
    show(description) {
      takePlace(node, element);
      const facts = JSON.stringify([description, words().group]);
      if (facts === shown) return;
      shown = facts;
      element.dataset.h3teNode = node.id;
      draw(node, row, description);
    },
  };
}

// Nodes 2.0 may keep the row of a node that had the same id before it (after an undo): it gives way to this one.
function takePlace(node, element) {
  if (element.isConnected || app.canvas?.graph !== node.graph) return;
  document.querySelector(`[data-node-id="${node.id}"] .h3te-chips`)?.replaceWith(element);
}

function draw(node, row, { chips, note, fixed }) {
  const focused = row.contains(document.activeElement) ? document.activeElement.dataset.label : null;
  row.setAttribute("aria-label", words().group);
  row.replaceChildren(...chips.map((chip) => chipFor(node, chip, fixed)));
  if (note) row.append(made("span", "h3te-note", note));
  const buttons = [...row.querySelectorAll("button")];
  const again = buttons.find((button) => button.dataset.label === focused);
  moveStop(buttons, again ?? buttons[0]);
  if (again) again.focus();
}

function chipFor(node, { label, state, from }, fixed) {
  const chip = made("button", `h3te-chip h3te-${state}`, SIGNS[state] + label);
  const there = state === "free" || state === "named";
  const told = words()[fixed && there ? "there" : state](label);
  chip.type = "button";
  chip.dataset.label = label;
  chip.title = from ? `${told}\n${from}` : told;
  chip.setAttribute("aria-label", from ? `${told}. ${from}` : told);
  if (fixed) chip.setAttribute("aria-disabled", "true");
  else chip.addEventListener("click", () => (there ? insert : select)(node, label, chip));
  return chip;
}

function onKey(event, row) {
  const buttons = [...row.querySelectorAll("button")];
  const at = buttons.indexOf(document.activeElement);
  if (at < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
  let next = null;
  if (event.key in STEPS) next = buttons[(at + STEPS[event.key] + buttons.length) % buttons.length];
  if (event.key === "Home") next = buttons[0];
  if (event.key === "End") next = buttons.at(-1);
  if (event.key === "Enter" || event.key === " ") return event.stopPropagation(); // the button's own, no shortcut
  if (!next) return;
  event.preventDefault();
  event.stopPropagation();
  moveStop(buttons, next);
  next.focus();
}

function moveStop(buttons, chosen) {
  for (const button of buttons) button.tabIndex = button === chosen ? 0 : -1;
}

// Another number of rows: the node grows when its own least height needs it.
function refit(node) {
  const least = node.computeSize?.() ?? [0, 0];
  if (node.size[1] < least[1]) node.setSize([node.size[0], least[1]]);
  node.setDirtyCanvas?.(true, true);
}

function onDrawnNode(element) {
  return Boolean(element.closest("[data-node-id]"));
}

// On the canvas the row lies above it: zooming goes on underneath.
function toCanvas(event, element) {
  if (onDrawnNode(element)) return;
  event.preventDefault();
  app.canvas?.processMouseWheel?.(event);
}

function made(tag, className, text = "") {
  const element = document.createElement(tag);
  element.className = className;
  element.textContent = text;
  return element;
}

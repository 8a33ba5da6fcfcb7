// The prompt of a node of ours: its text where it can be told, and a label put where the caret stands.
//
// Contract: `promptOf(node)` is {text, linked}; text is null where a link brings what cannot be read off the canvas.
import { app } from "../../scripts/app.js";

import { isLinked, sourceOf } from "./sources.js";

const LABEL = /<(Picture|Video|Audio) [0-9]+>/g; // as encoder/prompt_notes.py finds them
const TEXT_NODES = ["PrimitiveString", "PrimitiveStringMultiline"];
const LONGEST_WAY = 32;

export function promptWidget(node) {
  return node.widgets?.find((widget) => widget.name === "prompt");
}

export function promptOf(node) {
  if (!isLinked(node, "prompt")) return { text: String(promptWidget(node)?.value ?? ""), linked: false };
  return { text: linkedText({ node, hosts: [] }, "prompt", LONGEST_WAY), linked: true };
}

function linkedText(place, name, left) {
  const source = sourceOf(place, name);
  if (source.kind === "widget") return asText(source.widget.value);
  if (source.kind !== "output" || left <= 0) return null;
  const { node } = source.place;
  if (node.type === "PrimitiveNode") return asText(node.widgets?.[0]?.value);
  if (!TEXT_NODES.includes(node.comfyClass)) return null;
  if (isLinked(node, "value")) return linkedText(source.place, "value", left - 1);
  return asText(node.widgets?.find((widget) => widget.name === "value")?.value);
}

function asText(value) {
  return typeof value === "string" ? value : null;
}

// Labels in the text, each once, in their order.
export function labelsIn(text) {
  return [...new Set(text.match(LABEL) ?? [])];
}

// Puts `label` where the caret stands (over what is selected), as if it had been typed: the page's own undo knows it.
export function insert(node, label, near) {
  const field = fieldOf(node, near);
  if (!field) return setText(node, (text) => text + label);
  field.focus();
  // The only way that keeps the field's own undo; no browser is without it
  if (!document.execCommand?.("insertText", false, label)) {
    field.setRangeText(label, field.selectionStart, field.selectionEnd, "end");
    field.dispatchEvent(new Event("input", { bubbles: true }));
  }
  return rememberChange();
}

// Shows where a label stands.
export function select(node, label, near) {
  const field = fieldOf(node, near);
  const at = field?.value.indexOf(label) ?? -1;
  if (at < 0) return;
  field.focus();
  field.setSelectionRange(at, at + label.length);
}

// Nodes 2.0 draws a field of its own inside the node, which holds the chips as well; the canvas uses the widget's.
function fieldOf(node, near) {
  const drawn = near.closest("[data-node-id]")?.querySelector("textarea");
  const own = promptWidget(node)?.element ?? promptWidget(node)?.inputEl;
  return drawn ?? (own?.isConnected && own.tagName === "TEXTAREA" ? own : null);
}

function setText(node, change) {
  const widget = promptWidget(node);
  widget.value = change(String(widget.value ?? ""));
  widget.callback?.(widget.value);
  rememberChange();
}

// ComfyUI looks for changes to undo at clicks and keys; this one came after them.
function rememberChange() {
  const tracker = app.extensionManager?.workflow?.activeWorkflow?.changeTracker;
  (tracker?.captureCanvasState ?? tracker?.checkState)?.call(tracker);
}

// Where what arrives at an input comes from, read off the canvas as ComfyUI will run it.
//
// Contract: `sourceOf(place, name)` follows the link of one input past reroutes, bypassed nodes and the borders of
// subgraphs. A place is {node, hosts}: hosts are the subgraph nodes that were entered on the way. The answer is
//   {kind: "none"}                   nothing is linked, or a muted node is
//   {kind: "output", place, slot}    an output of a node that runs
//   {kind: "widget", widget}         a widget that a subgraph shows on itself
//   {kind: "unknown"}                it cannot be told (a subgraph that is used twice, a node that is missing)
import { app } from "../../scripts/app.js";

const MUTED = 2;
const BYPASSED = 4;
const BORDER = "-10"; // the node id of a subgraph's own inputs; a number on older releases
const FARTHEST = 100; // nodes on the way; more is a loop

const NONE = { kind: "none" };
const UNKNOWN = { kind: "unknown" };

export function sourceOf(place, name) {
  const slot = (place.node.inputs ?? []).findIndex((input) => input.name === name || input.widget?.name === name);
  return slot < 0 ? NONE : follow(place, slot, FARTHEST);
}

export function isLinked(node, name) {
  return (node.inputs ?? []).some((i) => (i.name === name || i.widget?.name === name) && i.link != null);
}

function follow({ node, hosts }, slot, left) {
  const id = node.inputs?.[slot]?.link;
  if (id == null) return NONE;
  const link = linkIn(node.graph, id);
  if (!link || left <= 0) return UNKNOWN;
  if (String(link.origin_id) === BORDER) return leave(node.graph, hosts, link.origin_slot, left);
  const origin = node.graph.getNodeById(link.origin_id);
  if (!origin) return UNKNOWN;
  return output({ node: origin, hosts }, link.origin_slot, left);
}

function output({ node, hosts }, slot, left) {
  if (node.mode === MUTED) return NONE;
  if (node.mode === BYPASSED) return passed({ node, hosts }, slot, left);
  if (node.subgraph) return enter({ node, hosts }, slot, left);
  if (node.isVirtualNode && node.type !== "PrimitiveNode") return virtual({ node, hosts }, slot, left);
  return { kind: "output", place: { node, hosts }, slot };
}

// A bypassed node gives what it takes: of the same place if the type is the same, else the first of that type.
function passed(place, slot, left) {
  const inputs = place.node.inputs ?? [];
  const type = place.node.outputs?.[slot]?.type;
  const same = inputs[slot]?.type === type ? slot : inputs.findIndex((input) => input.type === type);
  return same < 0 ? NONE : follow(place, same, left - 1);
}

// Reroutes and their kin say themselves which link they stand for.
function virtual(place, slot, left) {
  const link = place.node.getInputLink?.(slot);
  if (!link) return NONE;
  const origin = place.node.graph.getNodeById(link.origin_id);
  if (origin) return output({ node: origin, hosts: place.hosts }, link.origin_slot, left - 1);
  return String(link.origin_id) === BORDER ? leave(place.node.graph, place.hosts, link.origin_slot, left - 1) : UNKNOWN;
}

function enter({ node, hosts }, slot, left) {
  const inner = node.subgraph;
  const id = inner.outputs?.[slot]?.linkIds?.[0];
  const link = id == null ? null : linkIn(inner, id);
  if (!link) return NONE;
  const inside = [...hosts, node];
  if (String(link.origin_id) === BORDER) return leave(inner, inside, link.origin_slot, left - 1);
  const origin = inner.getNodeById(link.origin_id);
  return origin ? output({ node: origin, hosts: inside }, link.origin_slot, left - 1) : UNKNOWN;
}

// Out of a subgraph, through the node that stands for it: the one that was entered, or the only one there is.
function leave(graph, hosts, slot, left) {
  const host = hosts.at(-1) ?? onlyHost(graph);
  const input = host?.inputs?.[slot];
  if (!input) return UNKNOWN;
  if (input.link != null) return follow({ node: host, hosts: hosts.slice(0, -1) }, slot, left - 1);
  const widget = host.getWidgetFromSlot?.(input);
  return widget ? { kind: "widget", widget } : NONE;
}

function onlyHost(graph) {
  const root = graph.rootGraph ?? app.graph?.rootGraph ?? app.graph;
  const graphs = [root, ...(root?.subgraphs?.values() ?? [])];
  const found = graphs.flatMap((each) => (each?.nodes ?? []).filter((node) => node.subgraph === graph));
  return found.length === 1 ? found[0] : null;
}

function linkIn(graph, id) {
  return graph?.getLink?.(id) ?? graph?.links?.get?.(id) ?? graph?.links?.[id] ?? null;
}

// What the chips of a node show: references that are there, labels of the prompt that name none, a line of text.
//
// Contract: `describe(node)` -> {chips: [{label, state, from}], note, fixed}; state is "free" (there, not named),
// "named", "lacking" (named, and there is none) or "unsure" (named, and only a run tells). `fixed`: the prompt is not
// typed here.
import { labelsIn, promptOf } from "./prompt.js";
import { given } from "./references.js";
import { words } from "./words.js";

export function describe(node) {
  const { labels, open, both } = given(node);
  const { text, linked } = promptOf(node);
  const named = text === null ? [] : labelsIn(text);
  const there = new Set(labels.map(({ label }) => label));
  const chips = labels.map(({ label, from }) => ({ label, from, state: named.includes(label) ? "named" : "free" }));
  for (const label of named.filter((each) => !there.has(each))) {
    chips.push({ label, from: null, state: mayBe(label, open) ? "unsure" : "lacking" });
  }
  return { chips, note: note(labels, open, both, linked, text), fixed: linked };
}

// Numbers begin at 1 and are written without zeros before them.
function mayBe(label, open) {
  const [, kind, number] = label.match(/^<(\w+) (\d+)>$/);
  return Boolean(open[kind]) && !number.startsWith("0");
}

function note(labels, open, both, linked, text) {
  const said = words();
  const lines = [];
  if (both) lines.push(said.both);
  if (!labels.length && !Object.values(open).some(Boolean)) lines.push(said.nothing);
  if (linked) lines.push(text === null ? said.unread : said.linked);
  return lines.join(" ");
}

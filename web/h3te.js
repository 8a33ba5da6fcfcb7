// The pack's one extension of ComfyUI's page: references that a prompt can name, as chips under the prompt.
//
// Contract: touches nodes of ours that have a prompt, and nothing else; sends no request and adds no route. Everything
// works without it. Saved workflows are those of a page without it: the chips are no value, and `widgets_values` stay
// dense (ComfyUI leaves a hole where a widget that is not saved stands between others).
import { app } from "../../scripts/app.js";

import { makeChips } from "./chips.js";
import { describe } from "./describe.js";
import { promptWidget } from "./prompt.js";
import { watch } from "./watch.js";

const NODES = ["H3TEEncodeReferences", "H3TEEncodeKeyframes", "H3TEShowPresentation"];
const NAME = "h3te_references";

app.registerExtension({
  name: "h3te.references",
  nodeCreated(node) {
    if (NODES.includes(node.comfyClass) && promptWidget(node)) addChips(node);
  },
});

function addChips(node) {
  const chips = makeChips(node);
  const options = { serialize: false, hideOnZoom: true, margin: chips.margin };
  const widget = node.addDOMWidget(NAME, NAME, chips.element, options);
  widget.serialize = false; // what is saved; the option is about what is sent
  widget.computeSize = (width) => [width ?? 0, chips.height()];
  widget.computeLayoutSize = undefined; // as high as its rows: what is free belongs to the prompt
  moveUnder(node, widget, promptWidget(node));
  chain(node, "onSerialize", (saved) => saveDense(node, saved));
  const least = node.computeSize();
  node.setSize([Math.max(node.size[0], least[0]), Math.max(node.size[1], least[1])]);

  let stop = null;
  chain(node, "onAdded", () => {
    chips.start();
    stop ??= watch(() => chips.show(describe(node)));
  });
  chain(node, "onRemoved", () => {
    stop?.();
    stop = null;
    chips.stop();
  });
}

function moveUnder(node, widget, above) {
  const { widgets } = node;
  widgets.splice(widgets.indexOf(widget), 1);
  widgets.splice(widgets.indexOf(above) + 1, 0, widget);
}

function saveDense(node, saved) {
  if (!saved.widgets_values) return;
  saved.widgets_values = saved.widgets_values.filter((_, place) => node.widgets[place]?.serialize !== false);
}

// What was there runs first and its answer stays.
function chain(node, name, then) {
  const before = node[name];
  node[name] = function (...given) {
    const answer = before?.apply(this, given);
    then(...given);
    return answer;
  };
}

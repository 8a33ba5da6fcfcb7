// One clock for all nodes of ours that are on a canvas; it stands still when there is none, or the page is hidden.
//
// Text, links and switches change in many ways (typing, rewiring, undo, other extensions, a node far up a chain), and
// the page tells of each in another way or not at all. A look takes microseconds; what has not changed is not drawn.
const EVERY_MS = 200;

const looks = new Set();
let clock = 0;

// Calls `look` until the function that it returns is called. A look that fails is said once and not repeated.
export function watch(look) {
  looks.add(look);
  clock ||= setInterval(tick, EVERY_MS);
  return () => forget(look);
}

function forget(look) {
  looks.delete(look);
  if (looks.size || !clock) return;
  clearInterval(clock);
  clock = 0;
}

function tick() {
  if (document.hidden) return;
  // oxlint-disable-next-line no-useless-spread -- a look may add another one, whose turn is the next tick
  for (const look of [...looks]) {
    try {
      look();
    } catch (error) {
      forget(look);
      console.error("h3te: expected to read what is connected to a node, got", error);
    }
  }
}

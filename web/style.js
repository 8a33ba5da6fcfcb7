// How the chips look: ComfyUI's own variables, so that they follow its palette, light and dark.
const ID = "h3te-style";

const RULES = `
.h3te-chips { box-sizing: border-box; padding: 0 4px; overflow: hidden; font: 11px/16px Inter, Arial, sans-serif; }
.h3te-row { display: flex; flex-wrap: wrap; align-items: center; gap: 4px; padding: 2px 0; min-height: 22px;
  box-sizing: border-box; }
.h3te-chip { box-sizing: border-box; max-width: 100%; min-height: 18px; margin: 0; padding: 0 6px; border-radius: 9px;
  border: 1px solid var(--border-color, #4e4e4e); background: var(--comfy-input-bg, #222);
  color: var(--input-text, #ddd); font: inherit; white-space: nowrap; overflow: hidden; text-overflow: ellipsis;
  cursor: pointer; }
.h3te-chip:hover { border-color: var(--input-text, #ddd); }
.h3te-chip:focus-visible { outline: 2px solid var(--input-text, #ddd); outline-offset: -1px; }
.h3te-chip[aria-disabled="true"] { cursor: default; }
.h3te-named { border-color: currentColor; font-weight: 600; }
.h3te-unsure { border-style: dashed; }
.h3te-lacking { border: 1px solid #b3261e; background: #b3261e; color: #fff; font-weight: 600; }
.h3te-note { color: var(--input-text, #ddd); opacity: 0.8; overflow-wrap: anywhere; }
`;

// Once a page.
export function addStyle() {
  if (document.getElementById(ID)) return;
  const style = document.createElement("style");
  style.id = ID;
  style.textContent = RULES;
  document.head.append(style);
}

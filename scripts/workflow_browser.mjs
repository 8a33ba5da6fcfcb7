// Opens the bundled workflows in a real browser on a running ComfyUI and says what its frontend makes of them.
//
//   node scripts/workflow_browser.mjs http://127.0.0.1:8188 OUT [FILE.json ...]
//
// OUT gets a picture (FILE.png) and the facts (FILE.json) of each. Printed per workflow: node types that the frontend
// lacks, pairs of nodes that overlap as drawn, nodes outside their group, widget values that differ from the file, and
// whether the frontend's own API graph equals tests/workflow_api. Needs playwright-core (H3TE_PLAYWRIGHT names its
// node_modules) and Chromium (H3TE_CHROMIUM); nothing but the ComfyUI is reached. Not part of `make workflows`.
import fs from "node:fs";
import path from "node:path";
import { createRequire } from "node:module";
import { fileURLToPath } from "node:url";

const ROOT = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
  "--disable-background-networking", "--disable-component-update", "--disable-sync"];
const VIEW = { width: 3000, height: 1600 };

async function open(url) {
  const modules = process.env.H3TE_PLAYWRIGHT ?? path.join(process.cwd(), "node_modules");
  const { chromium } = createRequire(modules + "/")("playwright-core");
  const executablePath = process.env.H3TE_CHROMIUM ?? "/usr/bin/chromium";
  const browser = await chromium.launch({ executablePath, args: FLAGS });
  const page = await browser.newPage({ viewport: VIEW });
  await page.route("**/*", (route) => {
    const host = new URL(route.request().url()).hostname;
    return ["127.0.0.1", "localhost"].includes(host) ? route.continue() : route.abort();
  });
  const setting = (name, value) => page.request.post(`${url}/api/settings/${name}`, { data: JSON.stringify(value) });
  await setting("Comfy.TutorialCompleted", true);
  await setting("Comfy.VueNodes.Enabled", process.env.H3TE_VUE_NODES === "1");
  await page.goto(url, { waitUntil: "domcontentloaded" });
  await page.waitForFunction(() => window.app?.graph && Object.keys(window.LiteGraph.registered_node_types).length > 100,
    null, { timeout: 120000 });
  await page.waitForTimeout(3000);
  return { browser, page };
}

// runs in the page
async function describe() {
  const graph = window.app.graph;
  const nodes = [...(graph._nodes ?? graph.nodes)].map((node) => ({
    id: node.id, type: node.type, known: node.type in window.LiteGraph.registered_node_types,
    box: Array.from(node.getBounding()), collapsed: Boolean(node.flags.collapsed),
    inputs: (node.inputs ?? []).map((input) => [input.name, String(input.type), input.link ?? null]),
    widgets: (node.widgets ?? []).map((widget) => [widget.name, widget.value]),
  }));
  return { nodes, saved: graph.serialize(), sent: (await window.app.graphToPrompt()).output };
}

// runs in the page: all of it in view, with its text
function fit() {
  const canvas = window.app.canvas, graph = window.app.graph;
  const boxes = [...(graph._nodes ?? graph.nodes)].map((node) => Array.from(node.getBounding()));
  boxes.push(...(graph._groups ?? []).map((group) => Array.from(group._bounding)));
  const left = Math.min(...boxes.map((b) => b[0])), top = Math.min(...boxes.map((b) => b[1]));
  const width = Math.max(...boxes.map((b) => b[0] + b[2])) - left, height = Math.max(...boxes.map((b) => b[1] + b[3])) - top;
  const view = canvas.canvas.getBoundingClientRect();
  const scale = Math.min((view.width - 140) / width, (view.height - 160) / height);
  canvas.min_font_size_for_lod = 0;
  canvas.ds.scale = scale;
  canvas.ds.offset = [(view.width / scale - width) / 2 - left, (view.height / scale - height) / 2 - top];
  canvas.setDirty(true, true);
}

function overlaps(nodes) {
  const meet = (a, b) => a[0] < b[0] + b[2] && b[0] < a[0] + a[2] && a[1] < b[1] + b[3] && b[1] < a[1] + a[3];
  return nodes.flatMap((one, i) => nodes.slice(i + 1).filter((other) => meet(one.box, other.box)).map((o) => [one.id, o.id]));
}

function outside(nodes, groups) {
  const holds = ([x, y, w, h], [a, b, c, d]) => x <= a && y <= b && a + c <= x + w && b + d <= y + h;
  return nodes.filter((node) => node.type !== "MarkdownNote" && !groups.some((g) => holds(g.bounding, node.box))).map((n) => n.id);
}

function shifted(workflow, facts) {
  const saved = new Map(facts.saved.nodes.map((node) => [node.id, node]));
  const values = (node) => JSON.stringify((node?.widgets_values ?? []).map((value) => (value === "" ? null : value)));
  return workflow.nodes.filter((node) => values(node) !== values(saved.get(node.id))).map((node) => `${node.type} ${node.id}`);
}

function sentAlike(name, sent) {
  const file = path.join(ROOT, "tests", "workflow_api", `${name}.json`);
  if (!fs.existsSync(file)) return "no API copy";
  const sorted = (value) => (value && typeof value === "object" && !Array.isArray(value)
    ? Object.fromEntries(Object.keys(value).filter((key) => key !== "video-preview").sort().map((key) => [key, sorted(value[key])]))
    : value);
  const kept = JSON.parse(fs.readFileSync(file, "utf8"));
  return JSON.stringify(sorted(kept)) === JSON.stringify(sorted(sent)) ? "API graph equal" : "API graph DIFFERS";
}

const [url, out, ...given] = process.argv.slice(2);
const folder = path.join(ROOT, "workflows");
const files = given.length ? given : fs.readdirSync(folder).filter((f) => f.endsWith(".json")).map((f) => path.join(folder, f));
fs.mkdirSync(out, { recursive: true });
const { browser, page } = await open(url);
for (const file of files) {
  const workflow = JSON.parse(fs.readFileSync(file, "utf8")), name = path.basename(file, ".json");
  await page.evaluate((data) => window.app.loadGraphData(data), workflow);
  await page.waitForTimeout(2500);
  const facts = await page.evaluate(describe);
  for (let i = 0; i < 3; i++) await page.keyboard.press("Escape");
  await page.evaluate(fit);
  await page.waitForTimeout(1500);
  await page.screenshot({ path: path.join(out, `${name}.png`) });
  fs.writeFileSync(path.join(out, `${name}.json`), JSON.stringify(facts, null, 1));
  const lacking = [...new Set(facts.nodes.filter((node) => !node.known).map((node) => node.type))];
  console.log(`${name}: ${facts.nodes.length} nodes; lacking ${JSON.stringify(lacking)}; overlapping ` +
    `${JSON.stringify(overlaps(facts.nodes))}; outside groups ${JSON.stringify(outside(facts.nodes, workflow.groups))}; ` +
    `values changed ${JSON.stringify(shifted(workflow, facts))}; ${sentAlike(name, facts.sent)}`);
}
await browser.close();

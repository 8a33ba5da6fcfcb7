// The references that a request will have, counted from what is connected: <Picture i>, <Video k>, <Audio j>.
//
// Contract: numbers are those of the released presentation, per kind in request order: pictures, videos (a sound is
// <Audio> too), sounds, then the chain; keyframes: first, last, then those of the chain that the encoder is shown.
// Pictures come in batches and videos may bring a sound, so a count can be "at least": then `open[kind]` is true and
// nothing is claimed beyond it. `from` is the socket, and null after a count that is open.
import { isLinked, sourceOf } from "./sources.js";

export const KINDS = ["Picture", "Video", "Audio"];
const ONE_PICTURE = /\.(png|jpe?g|bmp)$/i; // other files may hold several, as a batch
const LONGEST_CHAIN = 64;

// [{label, from}], and per kind whether there may be more.
export function given(node) {
  const place = { node, hosts: [] };
  const counts = [...sockets(place), ...keyframes(place)];
  const labels = [];
  const open = {};
  const number = {};
  for (const { kind, least, more, from } of counts) {
    for (let i = 0; i < least; i++) {
      number[kind] = (number[kind] ?? 0) + 1;
      labels.push({ kind, label: `<${kind} ${number[kind]}>`, from: open[kind] ? null : from });
    }
    open[kind] ||= more;
  }
  const order = (a, b) => KINDS.indexOf(a.kind) - KINDS.indexOf(b.kind);
  return { labels: labels.sort(order), open, both: isMixed(node) };
}

function count(kind, from, least = 1, more = false) {
  return { kind, from, least, more };
}

function sockets(place) {
  const pictures = numbered(place.node, "ref_images").flatMap((name) => pictureAt(place, name, labelOf(name)));
  const videos = numbered(place.node, "ref_videos").flatMap((name) => videoAt(place, name));
  const sounds = numbered(place.node, "ref_audios").flatMap((name) => oneAt(place, name, "Audio", labelOf(name)));
  return [...pictures, ...videos, ...sounds, ...chain(place, "references", LONGEST_CHAIN, referenceOn)];
}

function keyframes(place) {
  const ends = ["first_frame", "last_frame"].flatMap((name) => {
    const file = fileOf(sourceOf(place, name));
    return oneAt(place, name, "Picture", file ? `${name}: ${file}` : name); // a batch is refused
  });
  return [...ends, ...chain(place, "keyframes", LONGEST_CHAIN, keyframeOn)];
}

function videoAt(place, name) {
  const video = oneAt(place, name, "Video", labelOf(name));
  const sound = name.replace("ref_videos.ref_video_", "ref_video_audios.ref_video_audio_");
  return video.length ? [...oneAt(place, sound, "Audio", labelOf(sound)), ...video] : [];
}

// "ref_images.ref_image_0" is the name on every release, grown or fixed
function numbered(node, group) {
  const names = (node.inputs ?? []).map((input) => input.name).filter((name) => name.startsWith(`${group}.`));
  const place = (name) => Number(name.split("_").at(-1));
  return names.sort((a, b) => place(a) - place(b));
}

function labelOf(name) {
  return name.split(".").at(-1);
}

function oneAt(place, name, kind, from) {
  const { kind: found } = sourceOf(place, name);
  if (found === "none") return [];
  return [found === "unknown" ? count(kind, from, 0, true) : count(kind, from)];
}

function pictureAt(place, name, from) {
  const source = sourceOf(place, name);
  if (source.kind === "none") return [];
  if (source.kind !== "output") return [count("Picture", from, 0, true)];
  const file = fileOf(source);
  return [count("Picture", file ? `${from}: ${file}` : from, 1, !ONE_PICTURE.test(file))];
}

function fileOf(source) {
  return source.place?.node.comfyClass === "LoadImage" ? String(valueOf(source.place, "image") ?? "") : "";
}

// The chain on an input, first item first. What is no node of ours may bring anything.
function chain(place, name, left, itemsOn) {
  const source = sourceOf(place, name);
  if (source.kind === "none") return [];
  const items = source.kind === "output" && left > 0 ? itemsOn(source.place) : null;
  if (!items) return (name === "keyframes" ? ["Picture"] : KINDS).map((kind) => count(kind, null, 0, true));
  return [...chain(source.place, name, left - 1, itemsOn), ...items];
}

function referenceOn(place) {
  const { node } = place;
  const from = node.title;
  if (node.comfyClass === "H3TEReferenceImage") return pictureAt(place, "image", from);
  if (node.comfyClass === "H3TEReferenceAudio") return oneAt(place, "audio", "Audio", from);
  if (node.comfyClass !== "H3TEReferenceVideo") return null;
  const video = [...oneAt(place, "video", "Video", from), ...oneAt(place, "frames", "Video", from)].slice(0, 1);
  return video.length ? [...soundOf(place, from), ...video] : [];
}

// A video file may have a sound or none: only the run tells.
function soundOf(place, from) {
  const wanted = valueOf(place, "with_sound");
  const own = oneAt(place, "soundtrack", "Audio", from);
  if (wanted === false || (!own.length && !isLinked(place.node, "video"))) return [];
  return wanted === true && own.length ? own : [count("Audio", from, 0, true)];
}

function keyframeOn(place) {
  if (place.node.comfyClass !== "H3TEKeyframe") return null;
  const shown = valueOf(place, "show_to_encoder");
  if (shown === false) return [];
  const found = oneAt(place, "image", "Picture", place.node.title);
  return shown ? found : found.map((one) => ({ ...one, least: 0, more: true }));
}

// Of a widget, or of the one that a subgraph shows on itself for it; undefined where another link brings it.
function valueOf(place, name) {
  if (isLinked(place.node, name)) return sourceOf(place, name).widget?.value;
  return place.node.widgets?.find((widget) => widget.name === name)?.value;
}

function isMixed(node) {
  const linked = (node.inputs ?? []).filter((input) => input.link != null).map((input) => input.name);
  const isReference = (name) => name === "references" || name.startsWith("ref_");
  const isKeyframe = (name) => ["first_frame", "last_frame", "keyframes"].includes(name);
  return linked.some(isReference) && linked.some(isKeyframe);
}

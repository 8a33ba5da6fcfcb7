// What the chips say, in the language of ComfyUI's page: English, or Chinese for zh and zh-TW.
import { app } from "../../scripts/app.js";

const WORDS = {
  en: {
    group: "References that the prompt can name",
    nothing: "No reference connected.",
    both: "References and keyframes cannot be used together.",
    linked: "The prompt comes over a link: edit it there.",
    unread: "The prompt comes over a link; its labels are not checked here.",
    free: (label) => `Insert ${label} at the caret`,
    named: (label) => `${label}, in the prompt; insert it again at the caret`,
    there: (label) => `${label}, connected`,
    lacking: (label) => `${label} is in the prompt, but no such reference is connected`,
    unsure: (label) => `${label} is there only if a batch or a video's own sound brings it`,
  },
  zh: {
    group: "提示词可以引用的参考",
    nothing: "尚未连接参考。",
    both: "参考与关键帧不能同时使用。",
    linked: "提示词来自连线：请在源节点编辑。",
    unread: "提示词来自连线，此处无法检查其中的标签。",
    free: (label) => `在光标处插入 ${label}`,
    named: (label) => `${label} 已在提示词中；点击可在光标处再次插入`,
    there: (label) => `${label} 已连接`,
    lacking: (label) => `提示词中有 ${label}，但没有连接这个参考`,
    unsure: (label) => `只有当图像批次或视频自带的声音提供时才有 ${label}`,
  },
};

export function words() {
  const locale = String(app.ui?.settings?.getSettingValue?.("Comfy.Locale") ?? "en");
  return locale.startsWith("zh") ? WORDS.zh : WORDS.en;
}

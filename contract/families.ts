// What is tried of each family of models (`npm run test:families`), as people read it.

/** The names of `tested` of a base, in order. */
export const familyTrials = {
  added: 'Added as a base',
  lora: 'Trained with LoRA',
  qlora: 'Trained with QLoRA',
  full: 'All weights trained',
  experts: 'Adapters of experts',
  packing: 'Rows packed',
  fast_layers: 'Fast layers',
  served: 'Served unmerged as trained',
  merged: 'Served merged as trained',
  asked: 'Asked',
  peft: 'Adapter for PEFT',
  adapter_gguf: 'Adapter in GGUF',
  huggingface: 'Hugging Face',
  gguf: 'GGUF',
  onnx: 'ONNX',
  tools: 'Tools',
  thoughts: 'Thoughts',
  pictures: 'Pictures',
} as const
export type FamilyTrial = keyof typeof familyTrials

/** What was tried and told, in that order. */
export const trialsOf = (tested: Readonly<Record<string, string>>): { title: string; result: string }[] =>
  Object.entries(familyTrials).flatMap(([name, title]) => (tested[name] ? [{ title, result: tested[name] }] : []))

/** Whether a family does what was tried: `none` is what it does not have. */
export const isMet = (result: string): boolean => /^(yes|merged only|none)\b/.test(result)

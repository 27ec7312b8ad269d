// Base models: catalogue, downloads and conversion. What the rest of the service may import.
export {
  bytesIn,
  type CheckpointFile,
  DownloadFailed,
  fetchFile,
  HashMismatch,
  listCheckpoint,
  type Source,
} from './checkpoint.ts'
export type { Downloads } from './downloads.ts'
export { type LocalBase, linearModules, type Projector } from './local-base.ts'
export { servesPictures } from './methods.ts'
export {
  defaultBase,
  type Hub,
  type Mixture,
  maxRowTokens,
  requireRowTokens,
  type TrainableBase,
} from './service.ts'
export { chatTemplateHash, tokenizerIdentity, writesTools } from './tokenizer-identity.ts'

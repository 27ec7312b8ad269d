// Base models: catalogue, downloads and conversion. What the rest of the service may import.
export { createDownloads, type Downloads, queueKind } from './downloads.ts'
export { workOnDownload } from './jobs.ts'
export { createHub, type Hub, type LocalBase, maxRowTokens, requireRowTokens } from './service.ts'
export { tokenizerIdentity } from './tokenizer-identity.ts'

// Exports of tuned models. What the rest of the service may import.
export { workOnExport } from './jobs.ts'
export { createPush } from './push.ts'
export { createExports, type Exports, queueKind } from './service.ts'

// Inference: the gateway, the engine, replicas, merged adapters and fidelity checks. What the rest of the service may import.
export { askInBackground, backgroundOperations } from './background.ts'
export { createEngineClient, type EngineClient, engineError } from './engine/client.ts'
export { createEngineProcess } from './engine/process.ts'
export { createScoring } from './fidelity/adapter-verification.ts'
export { readAll } from './replicas/http-client/client.ts'
export type { Target } from './replicas/replica.ts'
export { chatTool, responseFormat, thinksNot } from './responses/translate.ts'
export type { Inference } from './service.ts'

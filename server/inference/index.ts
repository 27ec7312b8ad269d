// Inference: the gateway, the engine, replicas, merged adapters and fidelity checks. What the rest of the service may import.
export { createEngineClient, type EngineClient, engineError } from './engine/client.ts'
export { createEngineProcess } from './engine/process.ts'
export { createScoring } from './fidelity/adapter-verification.ts'
export { meterFullResponse } from './gateway/relay.ts'
export { readAll } from './replicas/http-client/client.ts'
export { ReplicaFailure, type Target } from './replicas/replica.ts'
export type { Inference, Operation } from './service.ts'

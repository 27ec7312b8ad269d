// Inference: the gateway, the engine, replicas, merged adapters and fidelity checks. What the rest of the service may import.
export { askInBackground, backgroundOperations, TurnOver, yieldToOthers } from './background.ts'
export { createEngineClient, type EngineClient, engineError, type FindDraftFile } from './engine/client.ts'
export { createEngineProcess, engineOptions } from './engine/process.ts'
export { createScoring } from './fidelity/adapter-verification.ts'
export { createProbeCheck, type ProbeCheck } from './fidelity/probe-check.ts'
export {
  createReplicaVerification,
  shownHash,
  type VerifyReplica,
  WrongWeights,
} from './fidelity/replica-verification.ts'
export { type Aborts, createAborts } from './gateway/aborts.ts'
export { meterFullResponse, relayStream } from './gateway/relay.ts'
export { chat } from './gateway/routes.ts'
export { openSseResponse } from './gateway/sse-response.ts'
export { readAll } from './replicas/http-client/client.ts'
export { type OwnReplica, type Placement, type ReplicaState, startOwnReplica } from './replicas/own-replica.ts'
export { createPool } from './replicas/pool.ts'
export { createRemoteEngine, type RemoteRoute } from './replicas/remote-engine.ts'
export { ReplicaFailure, type Target } from './replicas/replica.ts'
export { createReplicaSet, type ReplicaSet, type ServingSet } from './replicas/replica-set.ts'
export { chatTool } from './responses/tools.ts'
export { responseFormat, thinksNot } from './responses/translate.ts'
export type { Inference } from './service.ts'

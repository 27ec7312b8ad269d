// A deployment that scales, with its replicas: what the controller decides and the reconciler carries out.

import type { ApiError } from '../../../contract/errors.ts'
import type { ScalingPolicy as WirePolicy } from '../../../contract/scaling.ts'
import type { OwnReplica, ReplicaSet } from '../serving/index.ts'
import type { Observation, ScalingPolicy } from './autoscaler.ts'
import type { Place } from './places.ts'

/** A configured deployment, as its row says. */
export interface ScaledDeployment {
  id: string
  account_id: string
  name: string
  policy: WirePolicy
  instance_type: string
}

export interface Decision {
  deployment_id: string
  at: number
  from: number
  to: number
  reason: string
  in_flight: number
  waiting: number
}

/** What this process knows of a deployment. */
export interface Entry {
  deployment: ScaledDeployment
  policy: ScalingPolicy
  set: ReplicaSet
  places: Map<OwnReplica, Place>
  /** Replicas whose end was asked for. */
  leaving: Set<OwnReplica>
  desired: number
  observations: Observation[]
  decisions: Decision[]
  counted: { arrived: number; completed: number; cpu: Map<OwnReplica, { at: number; cpu_ms: number }> }
  start_ms: number
  failures: number
  deaths: number[]
  retry_at: number
  utilization: number | null
  reason: string | null
  limit: string | null
  error: ApiError | null
  running: Promise<void> | undefined
  again: boolean
  removed: boolean
  /** It has no replica, and another gives it a place. */
  isStarving: boolean
}

/** Its replicas that serve or will, but those whose end was asked for. */
export const activeOf = (entry: Entry) =>
  entry.set
    .replicas()
    .filter((replica) => !entry.leaving.has(replica) && (replica.state() === 'starting' || replica.state() === 'ready'))
/** Those on the class that is configured now. */
export const fittingOf = (entry: Entry) =>
  activeOf(entry).filter((replica) => entry.places.get(replica)?.class === entry.deployment.instance_type)

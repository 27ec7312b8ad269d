// Which replica a request goes to: pure functions, which the capacity simulation calls too (bench/capacity).

/** What a choice reads of a replica. */
export interface Candidate {
  readonly name: string
  readonly max_concurrent: number
  inFlight: number
  readonly loadsOnDemand?: boolean
}

/**
 * The replica for a request; undefined if none has free capacity. `rotation`: a number that grows with each request.
 */
export function chooseReplica<R extends Candidate>(
  candidates: readonly R[],
  adapter_id: string | undefined,
  rotation: number,
): R | undefined {
  return adapter_id !== undefined && candidates.every(({ loadsOnDemand }) => loadsOnDemand)
    ? withAffinity(candidates, adapter_id)
    : leastLoaded(candidates, rotation)
}

/** The replica with the fewest requests that has free capacity; round robin among equals. */
export function leastLoaded<R extends Candidate>(candidates: readonly R[], rotation: number): R | undefined {
  let best: R | undefined
  for (let index = 0; index < candidates.length; index++) {
    const replica = candidates[(rotation + index) % candidates.length]!
    if (replica.inFlight < replica.max_concurrent && (!best || replica.inFlight < best.inFlight)) best = replica
  }
  return best
}

/** A replica takes this many times the mean load for the sake of adapters that it has. */
const spill = 1.5
/** Up to this many requests a replica is never too busy for an adapter that it has: one batch holds them. */
const quiet = 8

/**
 * The replica that an adapter belongs to, so that each replica has few adapters to hold and finds them loaded.
 * Rendezvous hashing orders the replicas for each adapter, alike in every server process and without any state. The
 * first with free capacity takes the request, unless it has more than its share of the load (consistent hashing with
 * bounded loads): an adapter in high demand spreads over as many replicas as it needs, the same ones each time.
 */
export function withAffinity<R extends Candidate>(candidates: readonly R[], adapter_id: string): R | undefined {
  let total = 1
  for (const { inFlight } of candidates) total += inFlight
  const bound = Math.max(quiet, Math.ceil((spill * total) / candidates.length))
  const key = hash(adapter_id)
  let best: R | undefined
  let bestRank = -1
  for (const replica of candidates) {
    if (replica.inFlight >= bound || replica.inFlight >= replica.max_concurrent) continue
    const rank = mixed(key ^ hashOfName(replica))
    if (rank <= bestRank) continue
    best = replica
    bestRank = rank
  }
  return best ?? leastLoaded(candidates, 0)
}

/** FNV-1a. */
function hash(text: string): number {
  let value = 0x811c9dc5
  for (let index = 0; index < text.length; index++) value = Math.imul(value ^ text.charCodeAt(index), 0x01000193)
  return value
}

/** The finalizer of MurmurHash3: every bit of the result depends on every bit of the value. */
function mixed(value: number): number {
  value = Math.imul(value ^ (value >>> 16), 0x85ebca6b)
  value = Math.imul(value ^ (value >>> 13), 0xc2b2ae35)
  return (value ^ (value >>> 16)) >>> 0
}

const nameHashes = new WeakMap<Candidate, number>()
function hashOfName(replica: Candidate): number {
  let value = nameHashes.get(replica)
  if (value === undefined) {
    value = hash(replica.name)
    nameHashes.set(replica, value)
  }
  return value
}

// Decides which adapter to merge next and which merged adapters to evict for it.

interface Demanded {
  id: string
  demand: number
}
export interface Candidate extends Demanded {
  /** Estimated size of the merged file. */
  bytes: number
}
export interface MergedAdapter extends Demanded {
  bytes: number
  /** Already evicted; it keeps its memory until its last request ends. */
  draining: boolean
}

/** The adapter to merge now, and the merged adapters to evict. */
interface Plan {
  merge?: string
  evict: string[]
}

/** A merged adapter is replaced only by one with this many times its demand, so that similar ones do not thrash. */
const replaceFactor = 2
/** A merged adapter is evicted when its demand falls below this share of `minDemand`. */
const keepShare = 1 / 8

/** `minDemand`: demand from which an adapter is merged, in recent output tokens. */
export function plan(
  candidates: readonly Candidate[],
  merged: readonly MergedAdapter[],
  minDemand: number,
  memory_bytes: number,
): Plan {
  const idle = merged.filter(({ demand, draining }) => !draining && demand < minDemand * keepShare).map(({ id }) => id)
  const used_bytes = merged.reduce((sum, { bytes }) => sum + bytes, 0)
  const freeing_bytes = merged
    .filter(({ id, draining }) => draining || idle.includes(id))
    .reduce((sum, { bytes }) => sum + bytes, 0)
  const leastDemandFirst = merged
    .filter(({ id, draining }) => !draining && !idle.includes(id))
    .sort((a, b) => a.demand - b.demand)
  for (const { id, demand, bytes } of candidates
    .filter(({ demand }) => demand >= minDemand)
    .sort((a, b) => b.demand - a.demand)) {
    if (used_bytes + bytes <= memory_bytes) return { merge: id, evict: idle }
    let missing = used_bytes - freeing_bytes + bytes - memory_bytes
    const evicted: string[] = []
    for (const replaceable of leastDemandFirst) {
      if (missing <= 0 || replaceable.demand * replaceFactor > demand) break
      evicted.push(replaceable.id)
      missing -= replaceable.bytes
    }
    // A later plan merges it, once the evicted ones are gone.
    if (missing <= 0) return { evict: [...idle, ...evicted] }
  }
  return { evict: idle }
}

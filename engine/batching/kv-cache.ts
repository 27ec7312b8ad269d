// The KV cache of a runner: one slot per sequence, in a context that can be replaced by one with more slots.
import type { Context, SavedSequence } from '../llama/context.ts'
import { positionsIn } from '../vision/picture-tokens.ts'
import { commonPrefix, copyGainMin, type Slot } from './prefix-cache.ts'

/** A copy of one slot's KV cache. */
export interface CachedPrefix {
  tokens: number[]
  saved: SavedSequence
}

export interface KvCache {
  slots(): Slot[]
  /** The position of the token after the first `count` that the slot has cached; by default, after all. */
  positionAfter(slot: Slot, count?: number): number
  context(): Context
  /** Keeps the first `keep` tokens of the slot, or none if its memory cannot be truncated there. */
  truncate(slot: Slot, keep: number): void
  /** Overwrites slot `to` with the cache of slot `from`. */
  copy(from: Slot, to: Slot): void
  /**
   * Loads a cache saved from another runner. Does nothing if it is too long for the slot. If the library refuses it,
   * the slot is empty.
   */
  restore(slot: Slot, saved: SavedSequence, tokens: number[]): void
  /**
   * A copy of the cached prefix that helps this prompt of this account most. Null if the copy costs more than it saves
   * over the `tokens` that the caller has cached already. The copied cache has at most `tokens_max` tokens.
   */
  exportPrefix(prompt: readonly number[], account: string, tokens: number, tokens_max: number): CachedPrefix | null
  /** Moves all cached tokens into a context with more slots, and frees the old context. */
  growInto(larger: Context, count: number): void
  /** Continues with an empty context of as many slots. */
  reset(context: Context): void
}

/** `uses_mrope`: a picture may take fewer positions than it has tokens. */
export function createKvCache(
  initialContext: Context,
  slot_count: number,
  tokens_per_slot: number,
  uses_mrope: boolean,
): KvCache {
  let context = initialContext
  let slots = makeSlots(slot_count)
  const positionAfter = ({ cached }: Slot, count = cached.length) => (uses_mrope ? positionsIn(cached, count) : count)

  const truncate = (slot: Slot, keep: number) => {
    if (slot.cached.length === keep) return
    const done = context.truncate(slot.index, positionAfter(slot, keep))
    if (!done) context.truncate(slot.index, 0)
    slot.cached.length = done ? keep : 0
  }

  return {
    slots: () => slots,
    positionAfter,
    context: () => context,
    truncate,
    copy(from, to) {
      const saved = context.save(from.index)
      context.truncate(to.index, 0)
      // The library's own copy runs in the next decode, after any restore until then. So use it only for caches that
      // cannot be saved and restored.
      const done = saved !== null && context.restore(to.index, saved)
      if (saved === null) context.copy(from.index, to.index)
      to.cached = done || saved === null ? from.cached.slice() : []
    },
    restore(slot, saved, tokens) {
      if (tokens.length > tokens_per_slot) return
      truncate(slot, 0)
      if (context.restore(slot.index, saved)) slot.cached = tokens
    },
    exportPrefix(prompt, account, tokens, tokens_max) {
      const sharedTokens = (slot: Slot) =>
        slot.account === account && slot.cached.length <= tokens_max
          ? commonPrefix(slot.cached, prompt, prompt.length - 1)
          : 0
      const best = slots.reduce((best, slot) => (sharedTokens(slot) > sharedTokens(best) ? slot : best))
      if (sharedTokens(best) < tokens + copyGainMin(best.cached.length)) return null
      const saved = context.save(best.index)
      return saved && { tokens: best.cached.slice(), saved }
    },
    growInto(larger, count) {
      const oldSlots = slots
      slots = makeSlots(count)
      for (const { index, cached, account, used_at, generation } of oldSlots) {
        const saved = cached.length > 0 ? context.save(index) : null
        Object.assign(slots[index]!, {
          account,
          used_at,
          generation,
          cached: saved && larger.restore(index, saved) ? cached : [],
        })
      }
      context.free()
      context = larger
    },
    reset(empty) {
      context = empty
      slots = makeSlots(slots.length)
    },
  }
}

function makeSlots(count: number): Slot[] {
  return Array.from({ length: count }, (_, index) => ({ index, cached: [], account: '', used_at: 0, generation: null }))
}

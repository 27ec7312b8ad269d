// The slots of a lane: what each has in its cache, in a context that may be exchanged for a wider one.
import type { Context, SavedSequence } from '../llama/context.ts'
import { commonPrefix, copyGainMin, type Slot } from './prefix-cache.ts'

export type Lent = { tokens: number[]; saved: SavedSequence }

export type Slots = {
  all(): Slot[]
  context(): Context
  /** Keeps the first `keep` tokens of the slot's cache, or none where its memory cannot be cut there. */
  cut(slot: Slot, keep: number): void
  /** Puts the cache of one slot into another. */
  copy(from: Slot, to: Slot): void
  /**
   * Puts a cache of another lane into a slot. One that is too long changes nothing; after one that fails the slot is
   * empty.
   */
  fill(slot: Slot, saved: SavedSequence, tokens: number[]): void
  /**
   * A beginning of a prompt of this account, if a copy of it spares more than it costs beside `tokens` that need none,
   * in a cache of `tokens_max` at most.
   */
  lend(prompt: readonly number[], account: string, tokens: number, tokens_max: number): Lent | null
  /** Goes on in a context of more slots; what is cached moves along. */
  moveInto(wider: Context, count: number): void
  /** Begins anew in an empty context of as many slots. */
  replace(context: Context): void
}

export function createSlots(first: Context, count: number, tokens_per_slot: number): Slots {
  let context = first
  let slots = makeSlots(count)

  const cut = (slot: Slot, keep: number) => {
    if (slot.cached.length === keep) return
    const done = context.truncate(slot.index, keep)
    if (!done) context.truncate(slot.index, 0)
    slot.cached.length = done ? keep : 0
  }

  return {
    all: () => slots,
    context: () => context,
    cut,
    copy(from, to) {
      const saved = context.save(from.index)
      context.truncate(to.index, 0)
      // The library's own copy takes the whole slot, and is made in the next decode: after whatever is restored until
      // then. It is only for caches that are never restored.
      const done = saved !== null && context.restore(to.index, saved)
      if (saved === null) context.copy(from.index, to.index)
      to.cached = done || saved === null ? from.cached.slice() : []
    },
    fill(slot, saved, tokens) {
      if (tokens.length > tokens_per_slot) return
      cut(slot, 0)
      if (context.restore(slot.index, saved)) slot.cached = tokens
    },
    lend(prompt, account, tokens, tokens_max) {
      const shared = (slot: Slot) =>
        slot.account === account && slot.cached.length <= tokens_max
          ? commonPrefix(slot.cached, prompt, prompt.length - 1)
          : 0
      const best = slots.reduce((found, slot) => (shared(slot) > shared(found) ? slot : found))
      if (shared(best) < tokens + copyGainMin(best.cached.length)) return null
      const saved = context.save(best.index)
      return saved && { tokens: best.cached.slice(), saved }
    },
    moveInto(wider, wanted) {
      const before = slots
      slots = makeSlots(wanted)
      for (const { index, cached, account, used_at, generation } of before) {
        const saved = cached.length > 0 ? context.save(index) : null
        Object.assign(slots[index]!, {
          account,
          used_at,
          generation,
          cached: saved && wider.restore(index, saved) ? cached : [],
        })
      }
      context.free()
      context = wider
    },
    replace(empty) {
      context = empty
      slots = makeSlots(slots.length)
    },
  }
}

function makeSlots(count: number): Slot[] {
  return Array.from({ length: count }, (_, index) => ({ index, cached: [], account: '', used_at: 0, generation: null }))
}

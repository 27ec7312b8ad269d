// Work outside the slots (embeddings, log-probabilities of prompts), on the same thread as decoding, to which it
// yields.
import { setTimeout as sleep } from 'node:timers/promises'

export interface SideWork {
  /** Whether any sequence is running. */
  isDecoding(): boolean
  /**
   * Call after each piece of work. While sequences run, waits for as long as the piece took, so that decoding gets half
   * of the thread.
   */
  yieldAfter(worked_ms: number): Promise<void>
}

export function createSideWork(isDecoding: () => boolean): SideWork {
  return {
    isDecoding,
    async yieldAfter(worked_ms) {
      if (isDecoding()) await sleep(worked_ms)
    },
  }
}

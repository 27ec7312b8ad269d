// Work outside of the slots (embeddings, probabilities of prompts) on the thread that streams need, too.
import { setTimeout as sleep } from 'node:timers/promises'

export type Beside = {
  /** Whether answers are under way. */
  isBusy(): boolean
  /**
   * After a piece of work that took so long: leaves as much time to the answers under way, so that these keep half of
   * the thread.
   */
  rest(worked_ms: number): Promise<void>
}

export function createBeside(isBusy: () => boolean): Beside {
  return {
    isBusy,
    async rest(worked_ms) {
      if (isBusy()) await sleep(worked_ms)
    },
  }
}

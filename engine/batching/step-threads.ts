// How many threads compute the next step. The threads of a step wait for each other hundreds of times, so one that gets
// no core makes all of them wait: beside another busy program, fewer threads are faster.
import type { ThreadChoice } from '../llama/compute-threads.ts'
import type { CoreTimes } from './core-times.ts'

/**
 * Steps are judged together until they have taken this long: on slow cores the service's work at the beginning and
 * end of an answer makes the threads wait for 12 to 16 ms.
 */
const judged_ms = 50
/**
 * Time that the threads waited for a core, as a part of the time of the steps, from which on fewer are faster. It is
 * over 0.5 beside one program, below 0.1 beside trainings at the lowest priority, up to 0.3 beside the service itself.
 */
const waitedMax = 0.4
/**
 * Free cores are counted over at least this long: the kernel tells idle time in ticks of 10 ms, so that a free core has
 * 0.8 of it at least. All threads are back before the second answer after the load.
 */
const counted_ms = 50
/** How many numbers of threads there are at most: each has its own threads, which sleep while others compute. */
const sizesMax = 16
/** A thread more needs this much of a core: one that waits for the rest of its time is kept. */
const freeMin = 1 - waitedMax
/** After another thread did not pay, the next attempt waits twice as long, up to this. */
const retryMax_ms = 5000
/** Another thread has paid if the steps keep it for this long. */
const paid_ms = 1000

type StepThreads = ThreadChoice

/** `max`: all compute threads. The choice is `max` while steps get the cores for it. */
export function createStepThreads(max: number, times: CoreTimes, now = () => performance.now()): StepThreads {
  const grain = Math.ceil(max / sizesMax)
  const sizeOf = (count: number) => (count >= max ? max : Math.max(1, count - (count % grain)))
  let threads = max
  let steps_ms = 0
  let waited_at = times.threads(max).waited_ms
  /** Since the last change, or the last count. */
  let counted = { at: now(), ...countCores() }
  let grown_at = Number.NEGATIVE_INFINITY
  let retry_ms = counted_ms

  function countCores() {
    const { idle_ms, nice_ms } = times.cores()
    return { idle_ms, nice_ms, used_ms: times.threads(threads).used_ms }
  }

  function become(count: number) {
    threads = count
    steps_ms = 0
    waited_at = times.threads(count).waited_ms
    counted = { at: now(), ...countCores() }
  }

  function shrinkIfWaiting() {
    const { waited_ms } = times.threads(threads)
    const lacking = (waited_ms - waited_at) / steps_ms
    waited_at = waited_ms
    steps_ms = 0
    if (lacking < waitedMax) return
    const at = now()
    retry_ms = at - grown_at < paid_ms ? Math.min(2 * retry_ms, retryMax_ms) : counted_ms
    become(sizeOf(threads - Math.max(1, Math.round(lacking))))
  }

  function growIfFree() {
    const at = now()
    const elapsed_ms = at - counted.at
    const cores = countCores()
    const used = (cores.used_ms - counted.used_ms) / elapsed_ms
    const idle = (cores.idle_ms - counted.idle_ms) / elapsed_ms
    // Programs at a lower priority leave a core to these threads, some at once, some in part.
    const nice = at - grown_at > retry_ms ? (cores.nice_ms - counted.nice_ms) / elapsed_ms : 0
    counted = { at, ...cores }
    const next = sizeOf(Math.floor(used + idle + nice + 1 - freeMin))
    if (next <= threads) return
    grown_at = at
    become(next)
  }

  return {
    threads() {
      if (threads < max && now() - counted.at >= counted_ms) growIfFree()
      return threads
    },
    record(count, ms) {
      // Fewer were possible than chosen.
      if (count !== threads) return
      steps_ms += ms
      if (threads > 1 && steps_ms >= judged_ms) shrinkIfWaiting()
    },
  }
}

// Bounds of rendering. A template comes with a model that anyone made, and rendering holds the thread that answers all
// requests.
import { ApiError } from '../../contract/errors.ts'
import { ownTime } from '../../lib/thread-time.ts'

/** `range`: that of Jinja's sandbox in Python. */
const bounds = { cpu_ms: 2_000, characters: 2 ** 25, items: 2 ** 20, range: 100_000 }
const stepsPerCheck = 1024
/** A step that copies this much takes about as long as one that copies nothing. */
const sizePerStep = 1024

/** The rendering of a template took too long, or too much memory. */
export class EndlessTemplate extends ApiError {
  readonly why: string
  constructor(why: string) {
    super(
      'invalid_request',
      `The model's chat template cannot render this: ${why}. Shorten the conversation. If short ones fail too, the ` +
        'template itself is at fault: take another base.',
      { param: 'messages' },
    )
    this.why = why
  }
}

let ends_at = Number.POSITIVE_INFINITY
let steps = 0

/** Runs `work`, whose steps count from now on. */
export function bounded<T>(work: () => T): T {
  const outer = ends_at
  ends_at = Math.min(outer, ownTime() + bounds.cpu_ms)
  try {
    return work()
  } finally {
    ends_at = outer
  }
}

/** Throws EndlessTemplate once the rendering has taken too long. */
export function countSteps(count: number): void {
  steps += count
  if (steps < stepsPerCheck) return
  steps = 0
  if (ownTime() > ends_at) throw new EndlessTemplate(`it takes more than ${bounds.cpu_ms / 1000} s to render`)
}

/** Counts a step that made a text or a list. Throws EndlessTemplate if that is too large. */
export function countStep(value: unknown): void {
  const size = typeof value === 'string' || Array.isArray(value) ? value.length : 0
  if (size > (typeof value === 'string' ? bounds.characters : bounds.items))
    throw new EndlessTemplate('it renders texts or lists that are too large')
  countSteps(1 + Math.floor(size / sizePerStep))
}

/** `range` of Python. */
export function range(start: number, stop?: number, step = 1): number[] {
  const [from, to] = stop === undefined ? [0, start] : [start, stop]
  if (step === 0) throw new Error('range() needs a step other than zero')
  const length = Math.max(0, Math.ceil((to - from) / step))
  if (length > bounds.range) throw new EndlessTemplate(`it counts to ${length}`)
  return Array.from({ length }, (_, index) => from + index * step)
}

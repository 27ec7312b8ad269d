// The prompts of a job: which rows are learned from and which are held out, in which order, and what a model is asked.
import { createHash } from 'node:crypto'
import { readNumberedJsonl } from '../../../../lib/jsonl.ts'
import { type EvaluationItem, readItems } from '../../evaluations/index.ts'

/** A number of 48 bits that follows from the parts alone. */
export const seedOf = (...parts: (string | number)[]): number =>
  createHash('sha256').update(parts.join(' ')).digest().readUIntBE(0, 6)

/** The numbers 1 to `count` in an order that follows from the seed. */
export function shuffled(count: number, seed: string): number[] {
  const order = Array.from({ length: count }, (_, index) => index + 1)
  let state = seedOf(seed) >>> 0
  for (let index = count - 1; index > 0; index--) {
    // A linear congruential generator (Numerical Recipes): the order has to be the same, not unpredictable.
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0
    const other = Math.floor((state / 2 ** 32) * (index + 1))
    const moved = order[index]!
    order[index] = order[other]!
    order[other] = moved
  }
  return order
}

interface Files {
  /** Rows to learn from, in the canonical form. */
  path: string
  /** Rows that are held out; undefined: `split` of the first file. */
  validation: string | undefined
  split: number
  seed: number
}

export class Prompts {
  /** Numbers of the rows of its file, counted from 1. */
  readonly learned: number[]
  readonly heldOut: { path: string; rows: number[] }
  private readonly path: string
  private readonly seed: number
  private epoch = -1
  private order: number[] = []

  private constructor(files: Files, learned: number[], heldOut: Prompts['heldOut']) {
    this.path = files.path
    this.seed = files.seed
    this.learned = learned
    this.heldOut = heldOut
  }

  static async open(files: Files): Promise<Prompts> {
    const count = await countRows(files.path)
    const all = Array.from({ length: count }, (_, index) => index + 1)
    if (files.validation !== undefined) {
      const rows = Array.from({ length: await countRows(files.validation) }, (_, index) => index + 1)
      return new Prompts(files, all, { path: files.validation, rows })
    }
    if (files.split === 0) return new Prompts(files, all, { path: files.path, rows: [] })
    // As `hold_out` of trainer/data/dataset.py: at least one of each.
    const held = Math.min(Math.max(1, Math.round(count * files.split)), count - 1)
    const rows = shuffled(count, `${files.seed} validation`)
      .slice(0, held)
      .sort((a, b) => a - b)
    const isHeld = new Set(rows)
    return new Prompts(
      files,
      all.filter((row) => !isHeld.has(row)),
      { path: files.path, rows },
    )
  }

  /** The prompts from place `from` on, in an order of its own for each pass over the rows. */
  async take(from: number, count: number): Promise<EvaluationItem[]> {
    const numbers = Array.from({ length: count }, (_, index) => this.at(from + index))
    const items = await read(this.path, numbers)
    return numbers.map((number) => items.get(number)!)
  }

  /** All held-out prompts. */
  async validation(): Promise<EvaluationItem[]> {
    const { path, rows } = this.heldOut
    return [...(await read(path, rows)).values()]
  }

  private at(place: number): number {
    const epoch = Math.floor(place / this.learned.length)
    if (epoch !== this.epoch) {
      this.epoch = epoch
      this.order = shuffled(this.learned.length, `${this.seed} epoch ${epoch}`)
    }
    return this.learned[this.order[place % this.learned.length]! - 1]!
  }
}

async function read(path: string, numbers: readonly number[]): Promise<Map<number, EvaluationItem>> {
  const items = new Map<number, EvaluationItem>()
  for await (const item of readItems({ path, canonical: true }, new Set(numbers))) items.set(item.row, item)
  return items
}

async function countRows(path: string): Promise<number> {
  let count = 0
  for await (const _ of readNumberedJsonl(path)) count++
  return count
}

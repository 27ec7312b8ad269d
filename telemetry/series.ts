// Counters, gauges and histograms for prom-client's registry, which writes them out. prom-client's own build a string
// of the labels for every value, and a histogram another one of its bucket: a tenth of what a request to the gateway
// costs.

type Labels = Readonly<Record<string, string | number>>
interface Value {
  labels: Labels
  value: number
  metricName?: string
}

/** The values of one metric by their labels: a map for each label, in the order of `names`. */
class Series<T extends object> {
  readonly names: readonly string[]
  readonly create: () => T
  all: { labels: Labels; state: T }[] = []
  #root: Map<string | number, unknown> | T

  constructor(names: readonly string[], create: () => T) {
    this.names = names
    this.create = create
    this.#root = this.#clear()
  }

  #clear(): Map<string | number, unknown> | T {
    this.all = []
    return this.names.length > 0 ? new Map() : this.#add({})
  }

  reset(): void {
    this.#root = this.#clear()
  }

  #add(labels: Labels): T {
    const state = this.create()
    this.all.push({ labels, state })
    return state
  }

  at(labels: Labels): T {
    let node = this.#root
    for (let index = 0; index < this.names.length; index++) {
      const branch = node as Map<string | number, unknown>
      const value = labels[this.names[index]!]!
      let next = branch.get(value)
      if (next === undefined) {
        next = index + 1 < this.names.length ? new Map() : this.#add({ ...labels })
        branch.set(value, next)
      }
      node = next as typeof node
    }
    return node as T
  }
}

/** What the registry reads of a metric. */
abstract class Metric {
  readonly name: string
  readonly help: string
  abstract readonly type: 'counter' | 'gauge' | 'histogram'
  readonly aggregator = 'sum'

  constructor({ name, help }: { name: string; help: string }) {
    this.name = name
    this.help = help
  }

  protected abstract values(): Value[]

  async get() {
    const { name, help, type, aggregator } = this
    return { name, help, type, aggregator, values: this.values() }
  }
}

/** A value that is added to or set; without labels it starts at 0. */
class Scalar<L extends string> extends Metric {
  readonly type: 'counter' | 'gauge'
  readonly #series: Series<{ value: number }>

  constructor(type: 'counter' | 'gauge', config: { name: string; help: string; labels?: readonly string[] }) {
    super(config)
    this.type = type
    this.#series = new Series(config.labels ?? [], () => ({ value: 0 }))
  }

  inc(labels: Record<L, string | number>, value?: number): void
  inc(value?: number): void
  inc(labels: Labels | number = 1, value = 1): void {
    if (typeof labels === 'number') this.#series.at({}).value += labels
    else this.#series.at(labels).value += value
  }

  dec(value = 1): void {
    this.#series.at({}).value -= value
  }

  set(labels: Record<L, string | number>, value: number): void
  set(value: number): void
  set(labels: Labels | number, value = 0): void {
    if (typeof labels === 'number') this.#series.at({}).value = labels
    else this.#series.at(labels).value = value
  }

  reset(): void {
    this.#series.reset()
  }

  protected values(): Value[] {
    return this.#series.all.map(({ labels, state }) => ({ labels, value: state.value }))
  }
}

export type Counter<L extends string> = Pick<Scalar<L>, 'inc' | 'reset' | 'get'>
export type Gauge<L extends string> = Pick<Scalar<L>, 'inc' | 'dec' | 'set' | 'reset' | 'get'>

/** Counts values by the smallest bound that they do not exceed. */
export class Histogram<L extends string> extends Metric {
  readonly type = 'histogram'
  readonly #bounds: readonly number[]
  readonly #series: Series<{ counts: number[]; sum: number }>

  constructor(config: { name: string; help: string; labels?: readonly string[]; buckets: readonly number[] }) {
    super(config)
    this.#bounds = config.buckets
    // The last count is of values beyond all bounds.
    this.#series = new Series(config.labels ?? [], () => ({
      counts: new Array<number>(config.buckets.length + 1).fill(0),
      sum: 0,
    }))
  }

  observe(labels: Record<L, string | number>, value: number): void
  observe(value: number): void
  observe(labels: Labels | number, value = 0): void {
    const observed = typeof labels === 'number' ? labels : value
    const state = this.#series.at(typeof labels === 'number' ? {} : labels)
    let bucket = 0
    while (bucket < this.#bounds.length && observed > this.#bounds[bucket]!) bucket++
    state.counts[bucket]!++
    state.sum += observed
  }

  protected values(): Value[] {
    const { name } = this
    return this.#series.all.flatMap(({ labels, state: { counts, sum } }) => {
      let count = 0
      const buckets = counts.map((amount, index) => {
        count += amount
        return { labels: { le: this.#bounds[index] ?? '+Inf', ...labels }, value: count, metricName: `${name}_bucket` }
      })
      return [
        ...buckets,
        { labels, value: sum, metricName: `${name}_sum` },
        { labels, value: count, metricName: `${name}_count` },
      ]
    })
  }
}

type Config = { name: string; help: string; labels?: readonly string[] }
export const counter = <L extends string>(config: Config): Counter<L> => new Scalar<L>('counter', config)
export const gauge = <L extends string>(config: Config): Gauge<L> => new Scalar<L>('gauge', config)

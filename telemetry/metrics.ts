// Metrics for Prometheus, declared as data: the registry, the reference page and the tests of the dashboard read one
// list.
import { Registry } from 'prom-client'
import { type Counter, counter, type Gauge, gauge, Histogram } from './series.ts'

export interface MetricDeclaration {
  type: 'counter' | 'gauge' | 'histogram'
  /** By Prometheus' conventions: base unit at the end, `_total` for counters. */
  name: string
  help: string
  /** Unit of the value: seconds, bytes, tokens, ratio, or what is counted. */
  unit: string
  /** Never a thing that clients create without bound: no accounts, keys, jobs, tuned models or deployments. */
  labels?: readonly string[]
  buckets?: readonly number[]
  /**
   * How the values of several processes become one: counts of each process add up, a shared fact is the same in all.
   */
  across: 'sum' | 'max'
}

export type Declarations = Record<string, MetricDeclaration>

type LabelOf<D extends MetricDeclaration> = D['labels'] extends readonly (infer L extends string)[] ? L : never
export type Metrics<D extends Declarations> = {
  [K in keyof D]: D[K]['type'] extends 'counter'
    ? Counter<LabelOf<D[K]>>
    : D[K]['type'] extends 'gauge'
      ? Gauge<LabelOf<D[K]>>
      : Histogram<LabelOf<D[K]>>
}

/** Creates every declared metric in a new registry. */
export function createMetrics<const D extends Declarations>(
  declarations: D,
): { registry: Registry; metrics: Metrics<D> } {
  const registry = new Registry()
  const created = Object.entries<MetricDeclaration>(declarations).map(([key, declaration]) => {
    const { type, buckets = latencyBuckets } = declaration
    const metric =
      type === 'counter'
        ? counter(declaration)
        : type === 'gauge'
          ? gauge(declaration)
          : new Histogram({ ...declaration, buckets })
    registry.registerMetric(metric as never)
    return [key, metric]
  })
  return { registry, metrics: Object.fromEntries(created) as Metrics<D> }
}

/** Buckets in seconds, for waits of people: from milliseconds to minutes. */
export const latencyBuckets = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120] as const
/** Buckets in seconds for the time of one token. */
export const tokenBuckets = [0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1] as const

/** Keeps the values of a label bounded: the first `max` keep their names, the others become `other`. */
export function boundedLabel(max: number): (value: string) => string {
  const seen = new Set<string>()
  return (value) => {
    if (!seen.has(value) && seen.size < max) seen.add(value)
    return seen.has(value) ? value : 'other'
  }
}

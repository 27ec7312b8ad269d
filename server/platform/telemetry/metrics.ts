// The values of the server's metrics, and what is read at a scrape.
import { collectDefaultMetrics } from 'prom-client'
import { boundedLabel, createMetrics, type Metrics } from '../../../telemetry/metrics.ts'
import { mergeEngineTexts } from './engine-metrics.ts'
import { serverMetrics } from './metric-list.ts'

/** Label values that exist from the start: an increase is only seen between two values. */
const gauges = {
  limitRejections: [
    'requests_per_minute',
    'requests_per_day',
    'max_concurrent',
    'wrong_keys_per_minute',
    'session_reads_per_minute',
    'overloaded',
  ].map((limit) => ({ limit })),
  jobAttempts: ['completed', 'failed', 'cancelled', 'paused', 'passed', 'interrupted', 'died', 'waiting', 'lost'].map(
    (outcome) => ({ outcome }),
  ),
  picturesFetched: ['fetched', 'failed'].map((outcome) => ({ outcome })),
  webhookAttempts: ['delivered', 'retried', 'failed', 'blocked'].map((outcome) => ({ outcome })),
} as const

/** Each measurement of the event loop's lag wakes the process, beside the threads that decode. */
const lagPrecision_ms = 100
/** Bases whose figures have their own label value. */
const bases_max = 100
/** Looks at the database and the disk are shared by all scrapes within this time. */
const look_ms = 5000
/** A scrape waits no longer for a look; it reports the last one. */
const lookTimeout_ms = 2000

export interface ServerMetrics extends Metrics<typeof serverMetrics> {
  /** The value of the label `base`. */
  base(id: string): string
  /**
   * Runs `look` before a scrape, at most every five seconds. It sets gauges; when it fails, or takes more than two
   * seconds, `failed` is called.
   */
  onLook(look: () => Promise<void> | void, failed?: () => void): void
  /** Engines of this process with the text of their metrics; undefined for one that does not answer. */
  onScrape(read: () => Promise<{ engine: string; text: string | undefined }[]>): void
  contentType: string
  /** All metrics in the text format. */
  text(): Promise<string>
}

export function createServerMetrics(now: () => number = Date.now): ServerMetrics {
  const { registry, metrics } = createMetrics(serverMetrics)
  collectDefaultMetrics({ register: registry, eventLoopMonitoringPrecision: lagPrecision_ms })
  for (const [name, values] of Object.entries(gauges))
    for (const labels of values) metrics[name as 'limitRejections'].inc(labels as never, 0)
  const looks: (() => Promise<void>)[] = []
  const readers: Parameters<ServerMetrics['onScrape']>[0][] = []
  return {
    ...metrics,
    base: boundedLabel(bases_max),
    contentType: registry.contentType,
    onLook(look, failed) {
      let looked_at = Number.NEGATIVE_INFINITY
      let running: Promise<void> | undefined
      looks.push(async () => {
        if (now() - looked_at < look_ms) return
        running ??= (async () => {
          try {
            await look()
          } catch {
            failed?.()
          } finally {
            looked_at = now()
            running = undefined
          }
        })()
        // One that hangs has failed for now; it may set its gauges later.
        const late = new Promise<boolean>((resolve) => void setTimeout(resolve, lookTimeout_ms, true).unref())
        if (await Promise.race([running.then(() => false), late])) failed?.()
      })
    },
    onScrape: (read) => void readers.push(read),
    async text() {
      await Promise.all(looks.map((look) => look()))
      const engines = (await Promise.all(readers.map((read) => read().catch(() => [])))).flat()
      const more = mergeEngineTexts(engines.flatMap(({ engine, text }) => (text === undefined ? [] : { engine, text })))
      return [await registry.metrics(), more].filter((text) => text !== undefined).join('\n')
    },
  }
}

// The metrics of the server, and their values that are read at a scrape.
import { collectDefaultMetrics } from 'prom-client'
import {
  boundedLabel,
  createMetrics,
  type Declarations,
  latencyBuckets,
  type Metrics,
  tokenBuckets,
} from '../../../telemetry/metrics.ts'
import { mergeEngineTexts } from './engine-metrics.ts'

/** What each label says, for the reference page. */
export const labelTexts: Record<string, string> = {
  method: 'HTTP method',
  route: 'route of the API as in its description, such as `/fine-tuning/jobs/{job_id}`',
  status: 'HTTP status',
  base: 'base model: its id, `other` from the 101st on; a tuned model counts for its base',
  kind: 'of requests: `chat`, `completion`, `embedding`; of the queue: kind of work',
  outcome: 'how it ended',
  source: 'of pictures: `encoded`, `cached` (their features were in memory)',
  type: 'of tokens: `prompt` (with cached ones), `cached`, `completion`',
  limit: 'limit of the tier or of an address, `waiting_…` (a full backlog of the account), or `overloaded`',
  replica: 'server of models: `engine`, or an upstream by its base and address',
  state: 'state',
  where:
    'source file of the service that held the event loop, `node` (none of its own), `unknown` (nobody looked: at ' +
    'most every five seconds)',
  thread: '`running`, or `waiting` for the processor of a busy machine or for a file',
  engine: '`shared`, or the place of a dedicated replica: `cores 0-3`, `GPU 1`, `GPU 1 (2)` for a second one there',
}

export const serverMetrics = {
  requestSeconds: {
    type: 'histogram',
    name: 'tunery_http_request_seconds',
    help: 'Time from a request to the end of its answer; of streams, to the last event.',
    unit: 'seconds',
    labels: ['method', 'route', 'status'],
    buckets: [0.005, 0.02, 0.1, 0.5, 2, 10, 60],
    across: 'sum',
  },
  requestsInFlight: {
    type: 'gauge',
    name: 'tunery_http_requests_in_flight',
    help: 'Requests to the API that are being answered, open streams included.',
    unit: 'requests',
    across: 'sum',
  },
  limitRejections: {
    type: 'counter',
    name: 'tunery_limit_rejections_total',
    help: 'Requests refused with 429 by a limit, and with 503 because too many wait (overloaded).',
    unit: 'requests',
    labels: ['limit'],
    across: 'sum',
  },
  loopBlockedSeconds: {
    type: 'histogram',
    name: 'tunery_event_loop_blocked_seconds',
    help: 'Times above 0.2 s for which one piece of work held the event loop, so that all requests waited.',
    unit: 'seconds',
    labels: ['where', 'thread'],
    buckets: [0.5, 1, 2, 5, 10, 30],
    across: 'sum',
  },
  inferenceRequests: {
    type: 'counter',
    name: 'tunery_inference_requests_total',
    help: 'Requests to models by how they ended: complete, client_left, broken (a stream), failed (before an answer).',
    unit: 'requests',
    labels: ['base', 'kind', 'outcome'],
    across: 'sum',
  },
  inferenceTokens: {
    type: 'counter',
    name: 'tunery_inference_tokens_total',
    help: 'Tokens of requests to models, as they are metered.',
    unit: 'tokens',
    labels: ['base', 'type'],
    across: 'sum',
  },
  inferenceSeconds: {
    type: 'histogram',
    name: 'tunery_inference_seconds',
    help: 'Time from the resolved model to the end of the answer.',
    unit: 'seconds',
    labels: ['base', 'kind'],
    buckets: latencyBuckets,
    across: 'sum',
  },
  firstTokenSeconds: {
    type: 'histogram',
    name: 'tunery_inference_time_to_first_token_seconds',
    help: 'Time to the first token of streamed answers: waiting, loading and prefill.',
    unit: 'seconds',
    labels: ['base'],
    buckets: latencyBuckets,
    across: 'sum',
  },
  tokenSeconds: {
    type: 'histogram',
    name: 'tunery_inference_time_per_output_token_seconds',
    help: 'Time per token after the first one, mean of a streamed answer.',
    unit: 'seconds',
    labels: ['base'],
    buckets: tokenBuckets,
    across: 'sum',
  },
  queueSeconds: {
    type: 'histogram',
    name: 'tunery_inference_queue_seconds',
    help: 'Time that a request to a model waited for a server with a free slot.',
    unit: 'seconds',
    labels: ['base'],
    buckets: latencyBuckets,
    across: 'sum',
  },
  loadSeconds: {
    type: 'histogram',
    name: 'tunery_inference_load_seconds',
    help: 'Time that a request waited for its model to load, of requests that waited for it.',
    unit: 'seconds',
    labels: ['base'],
    buckets: latencyBuckets,
    across: 'sum',
  },
  inferenceWaiting: {
    type: 'gauge',
    name: 'tunery_inference_waiting',
    help: 'Requests in the queues of models.',
    unit: 'requests',
    across: 'sum',
  },
  replicaUp: {
    type: 'gauge',
    name: 'tunery_replica_up',
    help: 'Whether the last probe or request of a server of models succeeded.',
    unit: '0 or 1',
    labels: ['replica'],
    across: 'max',
  },
  replicaInFlight: {
    type: 'gauge',
    name: 'tunery_replica_requests_in_flight',
    help: 'Requests that a server of models is answering for this process.',
    unit: 'requests',
    labels: ['replica'],
    across: 'sum',
  },
  replicaSlots: {
    type: 'gauge',
    name: 'tunery_replica_slots',
    help: 'Most requests that this process gives a server of models at once.',
    unit: 'requests',
    labels: ['replica'],
    across: 'sum',
  },
  ownReplicas: {
    type: 'gauge',
    name: 'tunery_scaled_replicas',
    help: 'Replicas of deployments that scale, by state: wanted, starting, ready, draining.',
    unit: 'replicas',
    labels: ['state'],
    across: 'sum',
  },
  mergedAdapters: {
    type: 'gauge',
    name: 'tunery_merged_adapters',
    help: 'Adapters that are served from a copy merged with their base.',
    unit: 'adapters',
    across: 'sum',
  },
  mergeRefusals: {
    type: 'gauge',
    name: 'tunery_merge_refusals',
    help: 'Adapters in memory that turned out not to be worth a merged copy.',
    unit: 'adapters',
    across: 'sum',
  },
  engineUp: {
    type: 'gauge',
    name: 'tunery_engine_up',
    help: 'Whether an engine of this process runs and answers; 0 also before its first start.',
    unit: '0 or 1',
    across: 'sum',
  },
  queueEntries: {
    type: 'gauge',
    name: 'tunery_queue_entries',
    help: 'Work in the queue, waiting or running.',
    unit: 'entries',
    labels: ['kind', 'state'],
    across: 'max',
  },
  queueAge: {
    type: 'gauge',
    name: 'tunery_queue_oldest_seconds',
    help: 'Age of the oldest entry that waits; 0 without one.',
    unit: 'seconds',
    labels: ['kind'],
    across: 'max',
  },
  jobs: {
    type: 'gauge',
    name: 'tunery_jobs',
    help: 'Fine-tuning jobs that have not ended: queued, running, paused.',
    unit: 'jobs',
    labels: ['state'],
    across: 'max',
  },
  jobAttempts: {
    type: 'counter',
    name: 'tunery_job_attempts_total',
    help:
      'Attempts at fine-tuning jobs by how they ended: completed, failed, cancelled, paused, passed (its turn to ' +
      'another account), interrupted (the service stopped), died (the trainer did), waiting (for disk space), lost ' +
      '(another process took over).',
    unit: 'attempts',
    labels: ['outcome'],
    across: 'sum',
  },
  trainings: {
    type: 'gauge',
    name: 'tunery_trainings',
    help: 'Attempts at fine-tuning jobs that this process works on.',
    unit: 'attempts',
    across: 'sum',
  },
  trainingProgress: {
    type: 'gauge',
    name: 'tunery_training_progress_ratio',
    help: 'Progress of the trainings of this process, their mean; 0 without one.',
    unit: 'ratio',
    across: 'max',
  },
  trainingSilence: {
    type: 'gauge',
    name: 'tunery_training_silence_seconds',
    help: 'Longest time since a running trainer last reported anything; 0 without one.',
    unit: 'seconds',
    across: 'max',
  },
  trainedTokens: {
    type: 'counter',
    name: 'tunery_trained_tokens_total',
    help: 'Tokens that trainers have gone through, as they report them.',
    unit: 'tokens',
    across: 'sum',
  },
  picturesFetched: {
    type: 'counter',
    name: 'tunery_pictures_fetched_total',
    help: 'Pictures of rows and requests at addresses on the web: fetched, failed.',
    unit: 'pictures',
    labels: ['outcome'],
    across: 'sum',
  },
  webhookAttempts: {
    type: 'counter',
    name: 'tunery_webhook_attempts_total',
    help:
      'Attempts to deliver webhooks: delivered, retried (it will be), failed (the last one), blocked (its ' +
      'address).',
    unit: 'attempts',
    labels: ['outcome'],
    across: 'sum',
  },
  webhookSeconds: {
    type: 'histogram',
    name: 'tunery_webhook_attempt_seconds',
    help: 'Time of an attempt to deliver a webhook.',
    unit: 'seconds',
    buckets: latencyBuckets,
    across: 'sum',
  },
  webhooksPending: {
    type: 'gauge',
    name: 'tunery_webhook_deliveries_pending',
    help: 'Deliveries of webhooks that have neither succeeded nor failed for good.',
    unit: 'deliveries',
    across: 'max',
  },
  webhookLag: {
    type: 'gauge',
    name: 'tunery_webhook_lag_seconds',
    help: 'How long the oldest due delivery to a healthy webhook is overdue; 0 without one.',
    unit: 'seconds',
    across: 'max',
  },
  databaseUp: {
    type: 'gauge',
    name: 'tunery_database_up',
    help: 'Whether the database answered the queries of the last look.',
    unit: '0 or 1',
    across: 'sum',
  },
  databaseSeconds: {
    type: 'gauge',
    name: 'tunery_database_look_seconds',
    help: 'Time of the queries of the last look at the database.',
    unit: 'seconds',
    across: 'max',
  },
  redisAway: {
    type: 'gauge',
    name: 'tunery_redis_away',
    help: 'Whether TUNERY_REDIS_URL does not answer, so that this process counts limits by itself.',
    unit: '0 or 1',
    across: 'sum',
  },
  servers: {
    type: 'gauge',
    name: 'tunery_servers',
    help: 'Server processes of the installation that live.',
    unit: 'processes',
    across: 'max',
  },
  storageUp: {
    type: 'gauge',
    name: 'tunery_storage_up',
    help: 'Whether the storage of artifacts can be reached; always 1 for a data folder.',
    unit: '0 or 1',
    across: 'sum',
  },
  diskFree: {
    type: 'gauge',
    name: 'tunery_storage_free_bytes',
    help: 'Free space on the disk of the data folder.',
    unit: 'bytes',
    across: 'max',
  },
  diskKept: {
    type: 'gauge',
    name: 'tunery_storage_reserved_bytes',
    help: 'Free space below which uploads and jobs are refused (TUNERY_MIN_FREE_DISK_MB).',
    unit: 'bytes',
    across: 'max',
  },
  spans: {
    type: 'counter',
    name: 'tunery_trace_spans_total',
    help: 'Spans of traces: exported, failed (the collector refused them or was away), dropped (the queue was full).',
    unit: 'spans',
    labels: ['outcome'],
    across: 'sum',
  },
} as const satisfies Declarations

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

// deploy/monitoring/grafana-dashboard.json, from the panels below, by Grafana's own builders.
import * as dashboard from '@grafana/grafana-foundation-sdk/dashboard'
import { DataqueryBuilder } from '@grafana/grafana-foundation-sdk/prometheus'
import { PanelBuilder as StatBuilder } from '@grafana/grafana-foundation-sdk/stat'
import { PanelBuilder as TimeseriesBuilder } from '@grafana/grafana-foundation-sdk/timeseries'
import { compactJson } from './json.ts'

export const dashboardFile = 'deploy/monitoring/grafana-dashboard.json'

interface Panel {
  title: string
  about: string
  unit: string
  /** Expression and legend of each line. */
  queries: [expr: string, legend: string][]
  stat?: true
}

/** What is read: one installation, some of its processes. */
const at = 'job=~"$job",instance=~"$instance"'
const rate = (metric: string, more = '') => `rate(${metric}{${at}${more}}[$__rate_interval])`
const quantile = (share: number, metric: string, by = '', more = '') =>
  `histogram_quantile(${share}, sum by (le${by}) (${rate(`${metric}_bucket`, more)}))`
const quantiles = (metric: string, more = ''): Panel['queries'] =>
  [0.5, 0.95, 0.99].map((share) => [quantile(share, metric, '', more), `p${share * 100}`])
const base = ',base=~"$base"'
const inference = '(chat/completions|completions|embeddings|responses)'

const panel = (title: string, about: string, unit: string, ...queries: Panel['queries']): Panel => ({
  title,
  about,
  unit,
  queries,
})
const stat = (...args: Parameters<typeof panel>): Panel => ({ ...panel(...args), stat: true })

const rows: { title: string; panels: Panel[] }[] = [
  {
    title: 'Service',
    panels: [
      stat('Processes up', 'Server processes that Prometheus reaches.', 'short', ['sum(up{job=~"$job"})', 'up']),
      stat('Requests', 'Requests to the API per second.', 'reqps', [
        `sum(${rate('tunery_http_request_seconds_count')})`,
        'requests',
      ]),
      stat('Failed requests', 'Share of requests with status 500 and above.', 'percentunit', [
        `(sum(${rate('tunery_http_request_seconds_count', ',status=~"5.."')}) or vector(0)) / ` +
          `sum(${rate('tunery_http_request_seconds_count')})`,
        '5xx',
      ]),
      stat('In flight', 'Requests that are being answered, open streams included.', 'short', [
        `sum(tunery_http_requests_in_flight{${at}})`,
        'in flight',
      ]),
      panel('Requests by status', 'Requests to the API per second.', 'reqps', [
        `sum by (status) (${rate('tunery_http_request_seconds_count')})`,
        '{{status}}',
      ]),
      panel(
        'Latency of management requests',
        'Time of all requests but those to models.',
        's',
        ...quantiles('tunery_http_request_seconds', `,route!~"/${inference}"`),
      ),
      panel('Slowest routes', 'The five routes with the highest p95.', 's', [
        `topk(5, ${quantile(0.95, 'tunery_http_request_seconds', ', route')})`,
        '{{route}}',
      ]),
      panel('Refused by limits', 'Requests refused by a limit of their tier, or because too many waited.', 'reqps', [
        `sum by (limit) (${rate('tunery_limit_rejections_total')})`,
        '{{limit}}',
      ]),
    ],
  },
  {
    title: 'Serving',
    panels: [
      panel('Requests to models', 'By how they ended.', 'reqps', [
        `sum by (outcome) (${rate('tunery_inference_requests_total', base)})`,
        '{{outcome}}',
      ]),
      panel('Tokens', 'Tokens per second. Cached prompt tokens are part of the prompt tokens.', 'short', [
        `sum by (type) (${rate('tunery_inference_tokens_total', base)})`,
        '{{type}}',
      ]),
      panel(
        'Time to first token',
        'Of streamed answers.',
        's',
        ...quantiles('tunery_inference_time_to_first_token_seconds', base),
      ),
      panel(
        'Time per output token',
        'After the first one, mean of a streamed answer.',
        's',
        ...quantiles('tunery_inference_time_per_output_token_seconds', base),
      ),
      panel('Whole answers', 'Time of an answer.', 's', ...quantiles('tunery_inference_seconds', base)),
      panel(
        'Waiting for a slot, and for loads',
        'Time that requests waited for a server of their model, and for the model to load.',
        's',
        [quantile(0.95, 'tunery_inference_queue_seconds', '', base), 'slot p95'],
        [quantile(0.95, 'tunery_inference_load_seconds', '', base), 'load p95'],
      ),
      panel(
        'In flight and waiting',
        'Requests at servers of models, and in the queues before them.',
        'short',
        [`sum by (replica) (tunery_replica_requests_in_flight{${at}})`, '{{replica}}'],
        [`sum(tunery_inference_waiting{${at}})`, 'waiting'],
      ),
      panel(
        'Servers of models up',
        'The engines of all models, the upstreams by the last probe, and replicas of deployments that scale.',
        'short',
        [`min by (replica) (tunery_replica_up{${at}})`, '{{replica}}'],
        [`sum(tunery_engine_up{${at}})`, 'engines'],
        [`sum by (state) (tunery_scaled_replicas{${at}})`, 'replicas {{state}}'],
      ),
      panel(
        'KV cache of the engines',
        'Share of the tokens in use by running sequences, and of the memory limit.',
        'percentunit',
        [`max by (engine) (tunery_engine_kv_cache_usage_ratio{${at}})`, 'tokens in use, {{engine}}'],
        [
          `sum by (engine) (tunery_engine_kv_cache_bytes{${at}}) / sum by (engine) ` +
            `(tunery_engine_kv_cache_limit_bytes{${at}})`,
          'memory, {{engine}}',
        ],
      ),
      panel(
        'Sequences in the engines',
        'Sequences that are computed and that wait, by engine, and all slots.',
        'short',
        [`sum by (engine) (tunery_engine_sequences_running{${at}})`, 'running, {{engine}}'],
        [`sum by (engine) (tunery_engine_sequences_waiting{${at}})`, 'waiting, {{engine}}'],
        [`sum(tunery_engine_slots{${at}})`, 'slots'],
      ),
      panel('Prefix cache', 'Share of prompt tokens that the engines took from the KV cache.', 'percentunit', [
        `sum(${rate('tunery_engine_prefix_cache_tokens_total')}) / ` +
          `(sum(${rate('tunery_engine_prefix_cache_tokens_total')}) + ` +
          `sum(${rate('tunery_engine_prompt_tokens_total')}))`,
        'cached',
      ]),
      panel(
        'Pictures',
        'Pictures of requests, encoded or with cached features, and engines that encode.',
        'short',
        [`sum by (source) (${rate('tunery_engine_pictures_total')})`, '{{source}}'],
        [`sum(${rate('tunery_engine_picture_encode_seconds_total')})`, 'engines encoding'],
      ),
      panel(
        'Steps of the engines',
        'Time of a decode step, and failed ones.',
        's',
        [quantile(0.95, 'tunery_engine_decode_seconds'), 'p95'],
        [`sum(${rate('tunery_engine_decode_failures_total')})`, 'failures per second'],
      ),
    ],
  },
  {
    title: 'Jobs and the queue',
    panels: [
      panel('Fine-tuning jobs', 'Jobs that have not ended.', 'short', [
        `max by (state) (tunery_jobs{${at}})`,
        '{{state}}',
      ]),
      panel('Progress of running trainings', 'Mean of each process.', 'percentunit', [
        `tunery_training_progress_ratio{${at}} and tunery_trainings{${at}} > 0`,
        '{{instance}}',
      ]),
      panel('Silence of trainers', 'Longest time since a running trainer reported anything.', 's', [
        `max(tunery_training_silence_seconds{${at}})`,
        'silent for',
      ]),
      panel('Trained tokens', 'Per second.', 'short', [`sum(${rate('tunery_trained_tokens_total')})`, 'tokens']),
      panel('Ends of attempts', 'Attempts at jobs within an hour, by how they ended.', 'short', [
        `sum by (outcome) (increase(tunery_job_attempts_total{${at}}[1h])) > 0`,
        '{{outcome}}',
      ]),
      panel('Queue', 'Work that waits and runs, by kind. The same from every process.', 'short', [
        `max by (kind, state) (tunery_queue_entries{${at}})`,
        '{{kind}} {{state}}',
      ]),
      panel('Age of the queue', 'Age of the oldest entry that waits.', 's', [
        `max by (kind) (tunery_queue_oldest_seconds{${at}})`,
        '{{kind}}',
      ]),
    ],
  },
  {
    title: 'Webhooks',
    panels: [
      panel('Lag', 'How long the oldest due delivery to a healthy webhook is overdue.', 's', [
        `max(tunery_webhook_lag_seconds{${at}})`,
        'overdue',
      ]),
      panel('Attempts', 'Per second, by how they ended.', 'cps', [
        `sum by (outcome) (${rate('tunery_webhook_attempts_total')})`,
        '{{outcome}}',
      ]),
      panel('Pending', 'Deliveries that have not ended.', 'short', [
        `max(tunery_webhook_deliveries_pending{${at}})`,
        'pending',
      ]),
      panel('Time of an attempt', 'How long receivers take.', 's', ...quantiles('tunery_webhook_attempt_seconds')),
    ],
  },
  {
    title: 'Database, disk, processes',
    panels: [
      panel(
        'Database, storage, Redis',
        'Server processes of the installation, and those that reach the database, the storage of artifacts and Redis.',
        'short',
        [`max(tunery_servers{${at}})`, 'servers'],
        [`sum(tunery_database_up{${at}})`, 'reach the database'],
        [`sum(tunery_storage_up{${at}})`, 'reach the storage'],
        [`sum(tunery_redis_away{${at}})`, 'without their Redis'],
      ),
      panel('Time of a look at the database', 'Counting the queue.', 's', [
        `tunery_database_look_seconds{${at}}`,
        '{{instance}}',
      ]),
      panel(
        'Free disk space',
        'Of the data folder, and the space below which uploads and jobs are refused.',
        'bytes',
        [`tunery_storage_free_bytes{${at}}`, '{{instance}}'],
        [`max(tunery_storage_reserved_bytes{${at}})`, 'refused below'],
      ),
      panel(
        'Memory',
        'Of servers and engines.',
        'bytes',
        [`process_resident_memory_bytes{${at}}`, 'server {{instance}}'],
        [`tunery_engine_process_resident_memory_bytes{${at}}`, 'engine {{engine}}, {{instance}}'],
      ),
      panel(
        'CPU',
        'Cores in use by servers and engines.',
        'short',
        [rate('process_cpu_seconds_total'), 'server {{instance}}'],
        [rate('tunery_engine_process_cpu_seconds_total'), 'engine {{engine}}, {{instance}}'],
      ),
      panel('Event loop lag', 'How late a server comes to what is due, 99th percentile.', 's', [
        `nodejs_eventloop_lag_p99_seconds{${at}}`,
        '{{instance}}',
      ]),
      panel(
        'Blocked event loop',
        'Share of the time in which one piece of work held a server for more than 0.2 s, by its source file.',
        'percentunit',
        [
          `sum by (where) (rate(tunery_event_loop_blocked_seconds_sum{${at}, thread="running"}[$__rate_interval]))`,
          '{{where}}',
        ],
      ),
      panel(
        'Spans of traces',
        'Per second: exported, failed and dropped. Nothing while tracing is off.',
        'cps',
        [`sum by (outcome) (${rate('tunery_trace_spans_total')})`, 'server {{outcome}}'],
        [`sum by (outcome) (${rate('tunery_engine_trace_spans_total')})`, 'engine {{outcome}}'],
      ),
    ],
  },
]

/** The names of the process' metrics that panels and alerts may use besides the declared ones. */
export const processMetrics = [
  'up',
  'process_resident_memory_bytes',
  'process_cpu_seconds_total',
  'nodejs_eventloop_lag_p99_seconds',
]

// biome-ignore lint/suspicious/noTemplateCurlyInString: a variable of the dashboard
const source = { type: 'prometheus', uid: '${datasource}' }

function panelOf({ title, about, unit, queries, stat }: Panel, id: number) {
  const builder = stat ? new StatBuilder() : new TimeseriesBuilder().min(0).fillOpacity(8).lineWidth(1)
  builder
    .id(id)
    .title(title)
    .description(about)
    .unit(unit)
    .datasource(source)
    .span(stat ? 6 : 8)
    .height(stat ? 4 : 8)
  queries.forEach(([expr, legend], index) => {
    builder.withTarget(
      new DataqueryBuilder()
        .refId(String.fromCharCode(65 + index))
        .expr(expr)
        .legendFormat(legend),
    )
  })
  return builder
}

const labelVariable = (name: string, label: string, metric: string, of = name) =>
  new dashboard.QueryVariableBuilder(name)
    .label(label)
    .datasource(source)
    .query(`label_values(${metric}, ${of})`)
    .refresh(dashboard.VariableRefresh.OnTimeRangeChanged)
    .multi(true)
    .includeAll(true)
    .allValue('.*')

/** The dashboard as JSON text, a panel a line. */
export function dashboardText(): string {
  const builder = new dashboard.DashboardBuilder('Tunery')
    .uid('tunery')
    .description(
      'Written by `npm run docs` from scripts/docs/dashboard.ts. Import it in Grafana, and choose the Prometheus.',
    )
    .tags(['tunery'])
    .time({ from: 'now-1h', to: 'now' })
    .refresh('30s')
    .tooltip(dashboard.DashboardCursorSync.Crosshair)
    .withVariable(new dashboard.DatasourceVariableBuilder('datasource').label('Prometheus').type('prometheus'))
    .withVariable(labelVariable('job', 'Job', 'tunery_http_requests_in_flight'))
    .withVariable(labelVariable('instance', 'Process', 'tunery_http_requests_in_flight{job=~"$job"}', 'instance'))
    .withVariable(labelVariable('base', 'Base model', 'tunery_inference_requests_total{job=~"$job"}', 'base'))
  let id = 0
  for (const { title, panels } of rows) {
    builder.withRow(new dashboard.RowBuilder(title).id(++id))
    for (const panel of panels) builder.withPanel(panelOf(panel, ++id))
  }
  return compactJson(builder.build(), 4000)
}

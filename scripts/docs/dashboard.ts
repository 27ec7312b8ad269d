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

const rows: { title: string; panels: Panel[] }[] = [
  {
    title: 'Service',
    panels: [
      {
        title: 'Processes up',
        about: 'Server processes that Prometheus reaches.',
        unit: 'short',
        stat: true,
        queries: [['sum(up{job=~"$job"})', 'up']],
      },
      {
        title: 'Requests',
        about: 'Requests to the API per second.',
        unit: 'reqps',
        stat: true,
        queries: [[`sum(${rate('tunery_http_request_seconds_count')})`, 'requests']],
      },
      {
        title: 'Failed requests',
        about: 'Share of requests with status 500 and above.',
        unit: 'percentunit',
        stat: true,
        queries: [
          [
            `(sum(${rate('tunery_http_request_seconds_count', ',status=~"5.."')}) or vector(0)) / ` +
              `sum(${rate('tunery_http_request_seconds_count')})`,
            '5xx',
          ],
        ],
      },
      {
        title: 'In flight',
        about: 'Requests that are being answered, open streams included.',
        unit: 'short',
        stat: true,
        queries: [[`sum(tunery_http_requests_in_flight{${at}})`, 'in flight']],
      },
      {
        title: 'Requests by status',
        about: 'Requests to the API per second.',
        unit: 'reqps',
        queries: [[`sum by (status) (${rate('tunery_http_request_seconds_count')})`, '{{status}}']],
      },
      {
        title: 'Latency of management requests',
        about: 'Time of all requests but those to models.',
        unit: 's',
        queries: quantiles('tunery_http_request_seconds', `,route!~"/${inference}"`),
      },
      {
        title: 'Slowest routes',
        about: 'The five routes with the highest p95.',
        unit: 's',
        queries: [[`topk(5, ${quantile(0.95, 'tunery_http_request_seconds', ', route')})`, '{{route}}']],
      },
      {
        title: 'Refused by limits',
        about: 'Requests refused by a limit of their tier, or because too many waited.',
        unit: 'reqps',
        queries: [[`sum by (limit) (${rate('tunery_limit_rejections_total')})`, '{{limit}}']],
      },
    ],
  },
  {
    title: 'Serving',
    panels: [
      {
        title: 'Requests to models',
        about: 'By how they ended.',
        unit: 'reqps',
        queries: [[`sum by (outcome) (${rate('tunery_inference_requests_total', base)})`, '{{outcome}}']],
      },
      {
        title: 'Tokens',
        about: 'Tokens per second. Cached prompt tokens are part of the prompt tokens.',
        unit: 'short',
        queries: [[`sum by (type) (${rate('tunery_inference_tokens_total', base)})`, '{{type}}']],
      },
      {
        title: 'Time to first token',
        about: 'Of streamed answers.',
        unit: 's',
        queries: quantiles('tunery_inference_time_to_first_token_seconds', base),
      },
      {
        title: 'Time per output token',
        about: 'After the first one, mean of a streamed answer.',
        unit: 's',
        queries: quantiles('tunery_inference_time_per_output_token_seconds', base),
      },
      {
        title: 'Whole answers',
        about: 'Time of an answer.',
        unit: 's',
        queries: quantiles('tunery_inference_seconds', base),
      },
      {
        title: 'Waiting for a slot, and for loads',
        about: 'Time that requests waited for a server of their model, and for the model to load.',
        unit: 's',
        queries: [
          [quantile(0.95, 'tunery_inference_queue_seconds', '', base), 'slot p95'],
          [quantile(0.95, 'tunery_inference_load_seconds', '', base), 'load p95'],
        ],
      },
      {
        title: 'In flight and waiting',
        about: 'Requests at servers of models, and in the queues before them.',
        unit: 'short',
        queries: [
          [`sum by (replica) (tunery_replica_requests_in_flight{${at}})`, '{{replica}}'],
          [`sum(tunery_inference_waiting{${at}})`, 'waiting'],
        ],
      },
      {
        title: 'Servers of models up',
        about: 'The engines of all models, the upstreams by the last probe, and replicas of deployments that scale.',
        unit: 'short',
        queries: [
          [`min by (replica) (tunery_replica_up{${at}})`, '{{replica}}'],
          [`sum(tunery_engine_up{${at}})`, 'engines'],
          [`sum by (state) (tunery_scaled_replicas{${at}})`, 'replicas {{state}}'],
        ],
      },
      {
        title: 'KV cache of the engines',
        about: 'Share of the tokens in use by running sequences, and of the memory limit.',
        unit: 'percentunit',
        queries: [
          [`max by (engine) (tunery_engine_kv_cache_usage_ratio{${at}})`, 'tokens in use, {{engine}}'],
          [
            `sum by (engine) (tunery_engine_kv_cache_bytes{${at}}) / sum by (engine) (tunery_engine_kv_cache_limit_bytes{${at}})`,
            'memory, {{engine}}',
          ],
        ],
      },
      {
        title: 'Sequences in the engines',
        about: 'Sequences that are computed and that wait, by engine, and all slots.',
        unit: 'short',
        queries: [
          [`sum by (engine) (tunery_engine_sequences_running{${at}})`, 'running, {{engine}}'],
          [`sum by (engine) (tunery_engine_sequences_waiting{${at}})`, 'waiting, {{engine}}'],
          [`sum(tunery_engine_slots{${at}})`, 'slots'],
        ],
      },
      {
        title: 'Prefix cache',
        about: 'Share of prompt tokens that the engines took from the KV cache.',
        unit: 'percentunit',
        queries: [
          [
            `sum(${rate('tunery_engine_prefix_cache_tokens_total')}) / ` +
              `(sum(${rate('tunery_engine_prefix_cache_tokens_total')}) + sum(${rate('tunery_engine_prompt_tokens_total')}))`,
            'cached',
          ],
        ],
      },
      {
        title: 'Pictures',
        about: 'Pictures of requests, encoded or with cached features, and engines that encode.',
        unit: 'short',
        queries: [
          [`sum by (source) (${rate('tunery_engine_pictures_total')})`, '{{source}}'],
          [`sum(${rate('tunery_engine_picture_encode_seconds_total')})`, 'engines encoding'],
        ],
      },
      {
        title: 'Steps of the engines',
        about: 'Time of a decode step, and failed ones.',
        unit: 's',
        queries: [
          [quantile(0.95, 'tunery_engine_decode_seconds'), 'p95'],
          [`sum(${rate('tunery_engine_decode_failures_total')})`, 'failures per second'],
        ],
      },
    ],
  },
  {
    title: 'Jobs and the queue',
    panels: [
      {
        title: 'Fine-tuning jobs',
        about: 'Jobs that have not ended.',
        unit: 'short',
        queries: [[`max by (state) (tunery_jobs{${at}})`, '{{state}}']],
      },
      {
        title: 'Progress of running trainings',
        about: 'Mean of each process.',
        unit: 'percentunit',
        queries: [[`tunery_training_progress_ratio{${at}} and tunery_trainings{${at}} > 0`, '{{instance}}']],
      },
      {
        title: 'Silence of trainers',
        about: 'Longest time since a running trainer reported anything.',
        unit: 's',
        queries: [[`max(tunery_training_silence_seconds{${at}})`, 'silent for']],
      },
      {
        title: 'Trained tokens',
        about: 'Per second.',
        unit: 'short',
        queries: [[`sum(${rate('tunery_trained_tokens_total')})`, 'tokens']],
      },
      {
        title: 'Ends of attempts',
        about: 'Attempts at jobs within an hour, by how they ended.',
        unit: 'short',
        queries: [[`sum by (outcome) (increase(tunery_job_attempts_total{${at}}[1h])) > 0`, '{{outcome}}']],
      },
      {
        title: 'Queue',
        about: 'Work that waits and runs, by kind. The same from every process.',
        unit: 'short',
        queries: [[`max by (kind, state) (tunery_queue_entries{${at}})`, '{{kind}} {{state}}']],
      },
      {
        title: 'Age of the queue',
        about: 'Age of the oldest entry that waits.',
        unit: 's',
        queries: [[`max by (kind) (tunery_queue_oldest_seconds{${at}})`, '{{kind}}']],
      },
    ],
  },
  {
    title: 'Webhooks',
    panels: [
      {
        title: 'Lag',
        about: 'How long the oldest due delivery to a healthy webhook is overdue.',
        unit: 's',
        queries: [[`max(tunery_webhook_lag_seconds{${at}})`, 'overdue']],
      },
      {
        title: 'Attempts',
        about: 'Per second, by how they ended.',
        unit: 'cps',
        queries: [[`sum by (outcome) (${rate('tunery_webhook_attempts_total')})`, '{{outcome}}']],
      },
      {
        title: 'Pending',
        about: 'Deliveries that have not ended.',
        unit: 'short',
        queries: [[`max(tunery_webhook_deliveries_pending{${at}})`, 'pending']],
      },
      {
        title: 'Time of an attempt',
        about: 'How long receivers take.',
        unit: 's',
        queries: quantiles('tunery_webhook_attempt_seconds'),
      },
    ],
  },
  {
    title: 'Database, disk, processes',
    panels: [
      {
        title: 'Database, storage, Redis',
        about:
          'Server processes of the installation, and those that reach the database, the storage of artifacts and Redis.',
        unit: 'short',
        queries: [
          [`max(tunery_servers{${at}})`, 'servers'],
          [`sum(tunery_database_up{${at}})`, 'reach the database'],
          [`sum(tunery_storage_up{${at}})`, 'reach the storage'],
          [`sum(tunery_redis_away{${at}})`, 'without their Redis'],
        ],
      },
      {
        title: 'Time of a look at the database',
        about: 'Counting the queue.',
        unit: 's',
        queries: [[`tunery_database_look_seconds{${at}}`, '{{instance}}']],
      },
      {
        title: 'Free disk space',
        about: 'Of the data folder, and the space below which uploads and jobs are refused.',
        unit: 'bytes',
        queries: [
          [`tunery_storage_free_bytes{${at}}`, '{{instance}}'],
          [`max(tunery_storage_reserved_bytes{${at}})`, 'refused below'],
        ],
      },
      {
        title: 'Memory',
        about: 'Of servers and engines.',
        unit: 'bytes',
        queries: [
          [`process_resident_memory_bytes{${at}}`, 'server {{instance}}'],
          [`tunery_engine_process_resident_memory_bytes{${at}}`, 'engine {{engine}}, {{instance}}'],
        ],
      },
      {
        title: 'CPU',
        about: 'Cores in use by servers and engines.',
        unit: 'short',
        queries: [
          [rate('process_cpu_seconds_total'), 'server {{instance}}'],
          [rate('tunery_engine_process_cpu_seconds_total'), 'engine {{engine}}, {{instance}}'],
        ],
      },
      {
        title: 'Event loop lag',
        about: 'How late a server comes to what is due, 99th percentile.',
        unit: 's',
        queries: [[`nodejs_eventloop_lag_p99_seconds{${at}}`, '{{instance}}']],
      },
      {
        title: 'Blocked event loop',
        about: 'Share of the time in which one piece of work held a server for more than 0.2 s, by its source file.',
        unit: 'percentunit',
        queries: [
          [
            `sum by (where) (rate(tunery_event_loop_blocked_seconds_sum{${at}, thread="running"}[$__rate_interval]))`,
            '{{where}}',
          ],
        ],
      },
      {
        title: 'Spans of traces',
        about: 'Per second: exported, failed and dropped. Nothing while tracing is off.',
        unit: 'cps',
        queries: [
          [`sum by (outcome) (${rate('tunery_trace_spans_total')})`, 'server {{outcome}}'],
          [`sum by (outcome) (${rate('tunery_engine_trace_spans_total')})`, 'engine {{outcome}}'],
        ],
      },
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

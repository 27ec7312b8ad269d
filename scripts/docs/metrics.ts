// docs/reference/metrics.md, from the declarations that server and engine register.
import { engineMetrics } from '../../engine/http/metrics.ts'
import { labelTexts, serverMetrics } from '../../server/platform/telemetry/metric-list.ts'
import type { MetricDeclaration } from '../../telemetry/metrics.ts'

type Table = (head: string[], rows: string[][]) => string

/** The engine's, as the server hands them on: with the label that says whose they are. */
const enginesMetrics = Object.values<MetricDeclaration>(engineMetrics).map((metricDeclaration) => ({
  ...metricDeclaration,
  labels: ['engine', ...(metricDeclaration.labels ?? [])],
}))

/** Every metric of the project. */
export const allMetrics: MetricDeclaration[] = [...Object.values(serverMetrics), ...enginesMetrics]

export function metricsPage(note: string, table: Table): string {
  const rows = (metrics: MetricDeclaration[]) =>
    metrics.map(({ name, type, labels = [], unit, across, help }) => [
      `\`${name}\``,
      type,
      labels.map((label) => `\`${label}\``).join(', '),
      unit,
      `\`${across}\``,
      help,
    ])
  const head = ['metric', 'type', 'labels', 'unit', 'several processes', 'what it is']
  const used = new Set(allMetrics.flatMap(({ labels = [] }) => labels))
  const labels = [...used].sort().map((label) => {
    const text = labelTexts[label]
    if (!text)
      throw new Error(
        `No description of the label ${label}. Add it to labelTexts in server/platform/telemetry/metric-list.ts.`,
      )
    return [`\`${label}\``, text]
  })
  return `${note}# Metrics

\`GET /metrics\` of the server, in Prometheus' text format. How to use them: [monitor](../monitor.md#metrics);
a dashboard and alerts are in \`deploy/monitoring\`, what to do about an alert in the [runbook](../runbook.md).

Several processes: \`sum\`, each process counts its own, so add them up; \`max\`, each process reports the same fact \
of the
whole installation (or the worst of its own), so take one.

No label has a value that clients create without bound: no account, key, job, tuned model or deployment.

## Server

${table(head, rows(Object.values(serverMetrics)))}

The Node process adds \`process_…\` and \`nodejs_…\` (CPU time, memory, event loop lag, garbage collection), as every \
program
with prom-client does.

## Engine

A part of the server's answer, for the engine of all models and for that of each replica of a deployment that scales \
on its
machine. A separate server of one model (\`engine/main.ts\` on a port) has only these, without the label \`engine\`.

${table(head, rows(enginesMetrics))}

## Labels

${table(['label', 'value'], labels)}
`
}

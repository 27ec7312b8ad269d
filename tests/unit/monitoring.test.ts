// The metrics, and the dashboard and alerts that read them.
import assert from 'node:assert/strict'
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { test } from 'node:test'
import { parser } from '@prometheus-io/lezer-promql'
import { parse } from 'yaml'
import { root } from '../../lib/root.ts'
import { dashboardFile, dashboardText, processMetrics } from '../../scripts/docs/dashboard.ts'
import { allMetrics } from '../../scripts/docs/metrics.ts'
import { createServerMetrics } from '../../server/platform/telemetry/metrics.ts'

const read = (file: string) => readFileSync(path.join(root, file), 'utf8')

/** Labels by the name of each series that Prometheus gets. Its own labels of a target are on all of them. */
const series = new Map<string, ReadonlySet<string>>()
for (const { name, type, labels = [] } of allMetrics) {
  const common = ['job', 'instance', ...labels]
  if (type === 'histogram') {
    series.set(`${name}_bucket`, new Set([...common, 'le']))
    for (const suffix of ['sum', 'count']) series.set(`${name}_${suffix}`, new Set(common))
  } else series.set(name, new Set(common))
}
for (const name of processMetrics) series.set(name, new Set(['job', 'instance']))

/** What is wrong with an expression: its syntax, a metric that does not exist, a label that it does not have. */
function problemsOf(text: string): string[] {
  const expr = text.replaceAll('$__rate_interval', '5m')
  const problems: string[] = []
  const tree = parser.parse(expr)
  type Node = typeof tree.topNode
  const textOf = (node: Node) => expr.slice(node.from, node.to)
  const all = (node: Node, name: string): Node[] => {
    const nodes: Node[] = []
    node.cursor().iterate((at) => void (at.name === name && nodes.push(at.node)))
    return nodes
  }
  tree.iterate({ enter: (at) => void (at.type.isError && problems.push(`syntax at ${at.from}: ${expr}`)) })
  const labelsOf = (selector: Node) => series.get(textOf(selector.getChild('Identifier')!))
  for (const selector of all(tree.topNode, 'VectorSelector')) {
    const labels = labelsOf(selector)
    if (!labels) problems.push(`no metric ${textOf(selector.getChild('Identifier')!)}`)
    for (const label of all(selector, 'LabelName'))
      if (labels && !labels.has(textOf(label))) problems.push(`no label ${textOf(label)} on ${textOf(selector)}`)
  }
  for (const aggregate of all(tree.topNode, 'AggregateExpr')) {
    const modifier = aggregate.getChild('AggregateModifier')
    for (const label of modifier ? all(modifier, 'LabelName') : [])
      for (const selector of all(aggregate, 'VectorSelector'))
        if (labelsOf(selector)?.has(textOf(label)) === false)
          problems.push(`${textOf(selector)} cannot be grouped by ${textOf(label)}`)
  }
  return problems
}

test('the check of expressions finds bad syntax, unknown metrics and unknown labels', () => {
  assert.deepEqual(problemsOf('sum(rate(tunery_trained_tokens_total[5m]))'), [])
  assert.match(problemsOf('sum(rate(tunery_trained_tokens_total[5m])')[0]!, /syntax/)
  assert.deepEqual(problemsOf('tunery_trained_tokens > 1'), ['no metric tunery_trained_tokens'])
  assert.match(problemsOf('tunery_jobs{base="x"}')[0]!, /no label base/)
  assert.match(problemsOf('max by (kind) (tunery_jobs)')[0]!, /cannot be grouped by kind/)
})

test('names follow the conventions of Prometheus, and no label is without bound', () => {
  const names = allMetrics.map(({ name }) => name)
  assert.equal(new Set(names).size, names.length)
  for (const { name, type, unit, help, labels = [] } of allMetrics) {
    assert.match(name, /^tunery_[a-z]+(_[a-z]+)*$/)
    assert.equal(name.endsWith('_total'), type === 'counter', `${name} is a ${type}`)
    if (['seconds', 'bytes', 'ratio'].includes(unit) && type !== 'counter') assert.ok(name.endsWith(`_${unit}`), name)
    assert.ok(!/_(ms|mb|kb|minutes|percent)(_|$)/.test(name), `${name} is in no base unit`)
    assert.match(help, /^[A-Z].*\.$/)
    for (const label of labels) assert.doesNotMatch(label, /account|key|user|job|model|deployment|address|id$/)
  }
})

test('a hundred and one bases: the last ones share a label', () => {
  const metrics = createServerMetrics()
  for (let index = 0; index < 100; index++) assert.equal(metrics.base(`base ${index}`), `base ${index}`)
  assert.deepEqual([metrics.base('base 7'), metrics.base('base 100')], ['base 7', 'other'])
})

test('looks are shared for five seconds, and one that hangs or fails leaves the others', async () => {
  let time = 0
  const metrics = createServerMetrics(() => time)
  let looks = 0
  let failures = 0
  metrics.onLook(() => metrics.diskFree.set(++looks))
  metrics.onLook(
    () => Promise.reject(new Error('away')),
    () => failures++,
  )
  metrics.onScrape(() => Promise.reject(new Error('away')))
  metrics.onScrape(async () => [{ engine: 'shared', text: '# TYPE more gauge\nmore 1\n' }])
  await metrics.text()
  time = 4999
  assert.match(await metrics.text(), /^tunery_storage_free_bytes 1$[\s\S]*^more\{engine="shared"\} 1$/m)
  time = 5000
  await metrics.text()
  assert.deepEqual([looks, failures], [2, 2])
})

test('the metrics of several engines are one text: each metric once, and whose series it is', async () => {
  const metrics = createServerMetrics()
  const text = (value: number) =>
    `# HELP a A.\n# TYPE a counter\na{status="}"} ${value}\n\n# HELP b B.\n# TYPE b gauge\nb ${value}\n`
  metrics.onScrape(async () => [{ engine: 'shared', text: text(1) }])
  metrics.onScrape(async () => [
    { engine: 'GPU "0" (2)', text: text(2) },
    { engine: 'starting', text: undefined },
  ])
  const [, engines] = (await metrics.text()).split(/(?=# HELP a A)/)
  assert.deepEqual(engines!.trimEnd().split('\n'), [
    '# HELP a A.',
    '# TYPE a counter',
    'a{engine="shared",status="}"} 1',
    'a{engine="GPU \\"0\\" (2)",status="}"} 2',
    '# HELP b B.',
    '# TYPE b gauge',
    'b{engine="shared"} 1',
    'b{engine="GPU \\"0\\" (2)"} 2',
  ])
})

test('a look that hangs holds a scrape for two seconds, and has failed', async (t) => {
  t.mock.timers.enable({ apis: ['setTimeout'] })
  const metrics = createServerMetrics()
  let failures = 0
  metrics.onLook(
    () => new Promise(() => {}),
    () => failures++,
  )
  const text = metrics.text()
  t.mock.timers.tick(2000)
  await text
  assert.equal(failures, 1)
})

interface Panel {
  id: number
  type: string
  title: string
  description?: string
  gridPos: { x: number; y: number; w: number; h: number }
  datasource?: { uid: string }
  targets?: { expr: string; refId: string }[]
}

test('the dashboard is up to date, its panels read metrics that exist and do not overlap', () => {
  const text = read(dashboardFile)
  assert.equal(text, dashboardText(), 'run `npm run docs`')
  const { panels, uid } = JSON.parse(text) as { panels: Panel[]; uid: string }
  assert.equal(uid, 'tunery')
  assert.equal(new Set(panels.map(({ id }) => id)).size, panels.length)
  const cells = new Set<string>()
  for (const { type, title, description, gridPos, targets = [], datasource } of panels) {
    for (let x = gridPos.x; x < gridPos.x + gridPos.w; x++)
      for (let y = gridPos.y; y < gridPos.y + gridPos.h; y++) {
        assert.ok(x < 24 && !cells.has(`${x} ${y}`), `${title} overlaps`)
        cells.add(`${x} ${y}`)
      }
    if (type === 'row') continue
    // biome-ignore lint/suspicious/noTemplateCurlyInString: a variable of the dashboard
    assert.ok(description && datasource?.uid === '${datasource}', title)
    assert.ok(targets.length > 0, title)
    for (const { expr } of targets) assert.deepEqual(problemsOf(expr), [], title)
  }
})

test('every declared metric that an operator looks at is on the dashboard or in an alert', () => {
  const shown = read(dashboardFile) + read('deploy/monitoring/alerts.yaml')
  const unshown = allMetrics.map(({ name }) => name).filter((name) => !shown.includes(name))
  // The reference page alone tells of these: details of an engine, of merged copies, and of pictures at addresses.
  assert.deepEqual(unshown, [
    'tunery_replica_slots',
    'tunery_merged_adapters',
    'tunery_merge_refusals',
    'tunery_pictures_fetched_total',
    'tunery_engine_requests_total',
    'tunery_engine_generation_tokens_total',
    'tunery_engine_queue_seconds',
    'tunery_engine_time_to_first_token_seconds',
    'tunery_engine_time_per_output_token_seconds',
    'tunery_engine_runners',
    'tunery_engine_base_models',
    'tunery_engine_adapters',
    'tunery_engine_base_models_asleep',
    'tunery_engine_step_threads',
  ])
})

interface Rule {
  alert: string
  expr: string
  for: string
  labels: { severity: string }
  annotations: { summary: string; runbook: string; runbook_url: string }
}

test('every alert reads metrics that exist, and has its paragraph in the runbook with the same line', () => {
  const { groups } = parse(read('deploy/monitoring/alerts.yaml')) as { groups: { name: string; rules: Rule[] }[] }
  const rules = groups.flatMap((group) => group.rules)
  const runbook = read('docs/runbook.md')
  for (const { alert, expr, for: time, labels, annotations, ...others } of rules) {
    assert.deepEqual(others, {}, alert)
    assert.deepEqual(problemsOf(expr), [], alert)
    assert.match(time, /^\d+[mh]$/)
    assert.ok(['critical', 'warning', 'info'].includes(labels.severity), alert)
    assert.ok(annotations.summary.length > 10, alert)
    assert.equal(annotations.runbook_url, `docs/runbook.md#${alert.toLowerCase()}`)
    assert.ok(runbook.includes(`## ${alert}\n\n**${annotations.runbook}**\n`), `the runbook's line of ${alert}`)
  }
  const headings = [...runbook.matchAll(/^## (\w+)$/gm)].map(([, name]) => name)
  assert.deepEqual(
    headings,
    rules.map(({ alert }) => alert),
  )
})

// docs/performance.md, written from the recorded results in docs/performance: a file for each topic, a record for each
// claim. A record that names an unknown machine, bench or test, or calls a missed target met, is refused.
import { existsSync, globSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { z } from 'zod'
import { compactJson } from './json.ts'

export const performanceFile = 'docs/performance.md'

const Run = {
  /** One of the machines in index.json; two are separated by a comma. */
  machine: z.string().min(1),
  /** The day on which the figure was recorded. */
  date: z.iso.date(),
  command: z.string().min(1),
}

const PerformanceRecord = z.strictObject({
  claim: z.string().min(1),
  figure: z.string().min(1),
  peer: z.string().optional(),
  /** Our figure divided by the peer's. */
  ratio: z.string().optional(),
  target: z.string().optional(),
  /** Whether the target was met. Required with a target. */
  met: z.boolean().optional(),
  note: z.string().optional(),
  ...Run,
})

const Breakdown = z.strictObject({
  title: z.string().min(1),
  ...Run,
  head: z.array(z.string()),
  rows: z.array(z.array(z.string())),
})

const Topic = z.strictObject({
  title: z.string().min(1),
  /** What was measured beside which peer, a paragraph each. */
  about: z.array(z.string()),
  records: z.array(PerformanceRecord),
  breakdowns: z.array(Breakdown).default([]),
  /** What bounds the figures, a list entry each. */
  bounds: z.array(z.string()),
})
export type Topic = z.infer<typeof Topic>

const Index = z.strictObject({
  /** Files of docs/performance without `.json`, in the order of the page. */
  topics: z.array(z.string()),
  /** Topics with a page of their own, docs/<name>.md. */
  pages: z.array(z.string()).default([]),
  machines: z.record(z.string(), z.string()),
})
export type Index = z.infer<typeof Index>

/** What the records of a checkout may name. */
export interface Commands {
  benches: Set<string>
  scripts: Set<string>
  exists(file: string): boolean
}

/** The records of a checkout. Throws an Error where a file is missing, not listed, or has an unknown field. */
export function readRecords(root: string): { index: Index; topics: Topic[]; pages: Map<string, Topic> } {
  const folder = path.join(root, 'docs/performance')
  const read = (name: string): unknown => JSON.parse(readFileSync(path.join(folder, `${name}.json`), 'utf8'))
  const index = Index.parse(read('index'))
  const files = globSync('*.json', { cwd: folder }).map((file) => path.basename(file, '.json'))
  const unlisted = files.filter(
    (file) => file !== 'index' && !index.topics.includes(file) && !index.pages.includes(file),
  )
  if (unlisted.length > 0) throw new Error(`docs/performance/index.json does not list ${unlisted.join(', ')}.`)
  return {
    index,
    topics: index.topics.map((name) => Topic.parse(read(name))),
    pages: new Map(index.pages.map((name) => [name, Topic.parse(read(name))])),
  }
}

/** The files of the records, by path, a record a line. */
export const recordFiles = (root: string): Record<string, string> =>
  Object.fromEntries(
    globSync('docs/performance/*.json', { cwd: root }).map((file) => [
      file,
      compactJson(JSON.parse(readFileSync(path.join(root, file), 'utf8')), 1000),
    ]),
  )

export function readCommands(root: string): Commands {
  const bench = readFileSync(path.join(root, 'bench/main.ts'), 'utf8')
  const { scripts } = JSON.parse(readFileSync(path.join(root, 'package.json'), 'utf8')) as { scripts: object }
  return {
    benches: new Set([...bench.matchAll(/^ {2}'?([\w-]+)'?: \[/gm)].map(([, name]) => name!)),
    scripts: new Set(Object.keys(scripts)),
    exists: (file) => existsSync(path.join(root, file)),
  }
}

/** What is wrong with the records, a sentence each. */
export function problemsOf({ machines }: Index, topics: Topic[], commands: Commands): string[] {
  const problems: string[] = []
  for (const { title, records, breakdowns } of topics) {
    const seen = new Set<string>()
    for (const record of records) {
      const at = `${title}, "${record.claim}"`
      problems.push(...runProblems(at, record))
      if ((record.target === undefined) !== (record.met === undefined))
        problems.push(`${at}: target and met belong together`)
      if (record.met !== undefined && contradicts(record))
        problems.push(`${at}: met is ${record.met}, the ratio differs`)
      const key = `${record.claim} ${record.machine}`
      if (seen.has(key)) problems.push(`${at}: twice for ${record.machine}; keep the latest`)
      seen.add(key)
    }
    for (const breakdown of breakdowns) {
      const at = `${title}, "${breakdown.title}"`
      problems.push(...runProblems(at, breakdown))
      if (breakdown.rows.some((row) => row.length !== breakdown.head.length)) problems.push(`${at}: cells are missing`)
    }
  }
  return problems

  function runProblems(at: string, { machine, command }: { machine: string; command: string }): string[] {
    const unknown = machine.split(', ').filter((name) => !(name in machines))
    const [, script = '', rest = ''] = /^npm run ([\w:]+)(?: -- (.*))?$/.exec(command) ?? []
    const bench = rest.split(' ')[0]!
    const files = rest.split(' ').filter((word) => word.startsWith('tests/'))
    return [
      ...unknown.map((name) => `${at}: no machine ${name}`),
      ...(commands.scripts.has(script) ? [] : [`${at}: no command ${command}`]),
      ...(script === 'bench' && !commands.benches.has(bench) ? [`${at}: no bench ${bench}`] : []),
      ...files.filter((file) => !commands.exists(file)).map((file) => `${at}: no file ${file}`),
    ]
  }
}

/** Whether `met` cannot be: the ratio lies on one side of the target for a speed and on the other for a time. */
function contradicts({ claim, ratio, target, met }: z.infer<typeof PerformanceRecord>): boolean {
  if (!/^[\d.]+$/.test(ratio ?? '') || !/^[\d.]+$/.test(target ?? '')) return false
  const isTime = /first token|time per token|one token after/.test(claim)
  return met !== (isTime ? Number(ratio) <= Number(target) : Number(ratio) >= Number(target))
}

/** The pages of topics that have their own, by path. `noteOf`: the first lines, from what they are written of. */
export const topicPages = (root: string, noteOf: (from: string) => string): Record<string, string> =>
  Object.fromEntries(
    [...readRecords(root).pages].map(([name, topic]) => [
      `docs/${name}.md`,
      `${noteOf(`docs/performance/${name}.json`)}${topicText(topic, 1)}`,
    ]),
  )

export function performancePage(root: string, note: string): string {
  const { index, topics, pages } = readRecords(root)
  const problems = problemsOf(index, [...topics, ...pages.values()], readCommands(root))
  if (problems.length > 0) throw new Error(`docs/performance: ${problems.join('; ')}.`)
  const named = (machine: string) => /^[A-Z]\d?$/.test(machine)
  const machines = Object.entries(index.machines).filter(([name]) => named(name))
  return `${note}# Performance

Each topic has a row for each claim: our figure, the peer's, their ratio, the target, the machine, the day and the \
command.
Both figures of a ratio come from one run on one machine. Machines differ, and the same machine differs by a quarter \
from
hour to hour. The records are in \`docs/performance\`, older ones in its history; \`npm run docs\` writes this page.

${table(['machine', 'what it is'], machines)}

All models are SmolLM2-135M-Instruct unless a topic says otherwise.

${topics.map((topic) => topicText(topic)).join('\n')}`
}

const columns = ['claim', 'Tunery', 'peer', 'ratio', 'target', 'met', 'machine', 'date', 'command']

/** `level`: 1 for a page of its own, whose tables then have headings. */
function topicText({ title, about, records, breakdowns, bounds }: Topic, level = 2): string {
  const met = (value: boolean | undefined) => (value === undefined ? '' : value ? 'yes' : '**missed**')
  const rows = records.map((record) => [
    record.note ? `${record.claim} (${record.note})` : record.claim,
    record.figure,
    record.peer ?? '',
    record.met && record.ratio ? `**${record.ratio}**` : (record.ratio ?? ''),
    record.target ?? '',
    met(record.met),
    record.machine,
    record.date,
    `\`${record.command}\``,
  ])
  // A column that no row fills is left out.
  const filled = columns.map((_, column) => rows.some((row) => row[column] !== ''))
  const keep = <T>(cells: T[]) => cells.filter((_, column) => filled[column])
  return [
    `${'#'.repeat(level)} ${title}\n`,
    ...about.map((paragraph) => `${paragraph}\n`),
    ...(rows.length > 0 ? [`${table(keep(columns), rows.map(keep))}\n`] : []),
    ...breakdowns.map(({ title, machine, date, command, head, rows }) =>
      level === 1
        ? `## ${title}\n\n${table(head, rows)}\n`
        : `**${title}** (${machine}, ${date}, \`${command}\`):\n\n${table(head, rows)}\n`,
    ),
    ...(bounds.length > 0 ? [level === 1 ? '## What bounds it\n' : 'What bounds it:\n'] : []),
    ...(bounds.length > 0 ? [`${bounds.map((bound) => `- ${bound}`).join('\n')}\n`] : []),
  ].join('\n')
}

function table(head: string[], rows: string[][]): string {
  const line = (cells: string[]) => `| ${cells.map((cell) => cell.replaceAll('|', '\\|') || ' ').join(' | ')} |`
  return [line(head), `|${'---|'.repeat(head.length)}`, ...rows.map(line)].join('\n')
}

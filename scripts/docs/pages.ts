// The pages of docs/reference, generated from the service's schemas and texts.
import { exportEventTexts, jobEventTexts, webhookEventTexts } from '../../contract/event-texts.ts'
import { CreateJob } from '../../contract/fine-tuning.ts'
import { settingsReference } from '../../server/config.ts'
import { cliPage } from './cli.ts'
import { fieldRows, typeOfSetting } from './fields.ts'
import { metricsPage } from './metrics.ts'

export const noteOf = (source: string) => `<!-- Written by \`npm run docs\` from ${source}. Do not edit. -->\n`
const generatedNote = noteOf('the schemas')

function table(head: string[], rows: string[][]): string {
  const line = (cells: string[]) =>
    `| ${cells.map((cell) => cell.replaceAll('|', '\\|').replaceAll('\n', ' ')).join(' | ')} |`
  return [line(head), `|${'---|'.repeat(head.length)}`, ...rows.map(line)].join('\n')
}

/** Every page by file name. Throws an Error if a field, a setting or an event has no description. */
export const referencePages = (): Record<string, string> => ({
  'settings.md': settingsPage(),
  'job-config.md': jobConfigPage(),
  'events.md': eventsPage(),
  'cli.md': cliPage(generatedNote),
  'metrics.md': metricsPage(generatedNote, table),
})

function settingsPage(): string {
  const settings = settingsReference()
  const bare = settings.filter(({ about }) => !about).map(({ name }) => name)
  if (bare.length > 0) throw new Error(`No description: ${bare.join(', ')}. Add its \`about\` in server/config.ts.`)
  const rows = settings.map(({ name, schema, default: fallback, about }) => [
    `\`${name}\``,
    typeOfSetting(schema),
    fallback,
    about,
  ])
  return `${generatedNote}# Settings

Settings come from the environment. With an unknown \`TUNERY_\` name or an invalid value the server does not start, and
lists every problem. \`./tunery config\` lists every setting with its current value.

${table(['setting', 'value', 'default', 'what it is'], rows)}
`
}

function jobConfigPage(): string {
  const rows = fieldRows(CreateJob).map((row) => [`\`${row.path}\``, row.type, row.default, row.description])
  return `${generatedNote}# The body of POST /v1/fine-tuning/jobs

A field that is not listed here is refused (\`unknown_field\`). The job's \`resolved_config\` shows every value that is
used and where it came from. [Choose a method](../guides/choose-a-method.md) says
which to change and when, [decision 043](../decisions/043-default-hyperparameters.md) how the defaults were measured.

${table(['field', 'type and bounds', 'default', 'what it is'], rows)}
`
}

type EventTexts = Record<string, { when: string; data: Record<string, string> }>

function eventTable(texts: EventTexts): string {
  const fields = (data: Record<string, string>) =>
    Object.entries(data)
      .map(([name, about]) => `\`${name}\`: ${about}`)
      .join(' ')
  const bare = Object.entries(texts).filter(([, { when, data }]) => !when || Object.values(data).includes(''))
  if (bare.length > 0)
    throw new Error(`No description: ${bare.map(([type]) => type).join(', ')}. Add it in contract/event-texts.ts.`)
  return table(
    ['type', 'when', '`data`'],
    Object.entries(texts).map(([type, { when, data }]) => [`\`${type}\``, when, fields(data)]),
  )
}

function eventsPage(): string {
  return `${generatedNote}# Events

## Webhooks

The body of each is \`{"id","type","created_at","data"}\`. How to receive them:
[receive webhooks](../guides/receive-webhooks.md).

${eventTable(webhookEventTexts)}

## Jobs

\`GET /v1/fine-tuning/jobs/{id}/events\` streams one JSON object per line:
\`{"type","message","seq","created_at","data"}\`. \`seq\` counts from 1 without gaps; \`?after=SEQ\` resumes after that
number. \`data\` has the fields that apply.

${eventTable(jobEventTexts)}

## Exports

\`GET /v1/exports/{id}/events\` streams the same shape.

${eventTable(exportEventTexts)}
`
}

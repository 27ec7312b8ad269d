// The pages of docs/reference, from the schemas and texts that the service itself uses.
import { exportEventTexts, jobEventTexts, webhookEventTexts } from '../../contract/event-texts.ts'
import { CreateJob } from '../../contract/tuning.ts'
import { settingsReference } from '../../server/config.ts'
import { fieldRows, typeOfSetting } from './fields.ts'

const made = '<!-- Written by `npm run docs` from the schemas. Do not edit. -->\n'

function table(head: string[], rows: string[][]): string {
  const line = (cells: string[]) =>
    `| ${cells.map((cell) => cell.replaceAll('|', '\\|').replaceAll('\n', ' ')).join(' | ')} |`
  return [line(head), `|${'---|'.repeat(head.length)}`, ...rows.map(line)].join('\n')
}

/** Every page by its file's name. Throws an Error where a field, a setting or an event has no description. */
export const referencePages = (): Record<string, string> => ({
  'settings.md': settingsPage(),
  'job-config.md': jobConfigPage(),
  'events.md': eventsPage(),
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
  return `${made}# Settings

Settings come from the environment. An unknown \`TUNERY_\` name or a wrong value ends the start with a message that lists all that is wrong.
\`./tunery config\` lists every setting with its value in force.

${table(['setting', 'value', 'default', 'what it is'], rows)}
`
}

function jobConfigPage(): string {
  const rows = fieldRows(CreateJob).map((row) => [`\`${row.path}\``, row.type, row.default, row.description])
  return `${made}# The body of POST /v1/fine-tuning/jobs

A field that is not listed here is refused (\`unknown_field\`). The job's \`resolved_config\` shows every value in force and where it came from.
Which method and settings to take: [methods.md](../methods.md). How the defaults were measured: [defaults.md](../defaults.md).

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
  return `${made}# Events

## Webhooks

The body of each is \`{"id","type","created_at","data"}\`. How to receive them: [receive webhooks](../guides/receive-webhooks.md).

${eventTable(webhookEventTexts)}

## Jobs

\`GET /v1/fine-tuning/jobs/{id}/events\` streams one JSON object a line: \`{"type","message","seq","created_at","data"}\`. \`seq\` counts from 1 without gaps;
\`?after=SEQ\` goes on after that number. \`data\` has those of the fields that apply.

${eventTable(jobEventTexts)}

## Exports

\`GET /v1/exports/{id}/events\` streams the same shape.

${eventTable(exportEventTexts)}
`
}

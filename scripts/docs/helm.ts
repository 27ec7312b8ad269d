// The Helm charts' generated parts: the names of settings in the service's values.schema.json, and each chart's README
// with all of its values.
import { readFileSync } from 'node:fs'
import path from 'node:path'
import { parse } from 'yaml'
import { root } from '../../lib/root.ts'
import { secretSettingNames, settingsReference } from '../../server/config.ts'
import { compactJson } from './json.ts'

interface Schema {
  description?: string
  type?: string | string[]
  enum?: string[]
  minimum?: number
  maximum?: number
  properties?: Record<string, Schema>
  propertyNames?: { enum?: string[] }
  additionalProperties?: boolean | Schema
  items?: Schema
  $ref?: string
  definitions?: Record<string, Schema>
}

export const charts = ['tunery', 'tunery-model'] as const
const read = (chart: string, file: string) => readFileSync(path.join(root, 'deploy/helm', chart, file), 'utf8')

/** Settings that `./tunery` or set-up reads, or that the chart sets from other values. */
const notServer = ['URL', 'KEY', 'API_KEY', 'PROFILE', 'PYTHON', 'GPU', 'PORT', 'HOST', 'DATA_DIR', 'MODELS_DIR']
const fromValues = [
  'SECRET_KEY_FILE',
  'UPSTREAMS',
  'DATABASE_URL',
  'REDIS_URL',
  'STORAGE_URL',
  'RAY_ADDRESS',
  'RAY_SERVICE_URL',
]
const other = new Set([...notServer, ...fromValues].map((name) => `TUNERY_${name}`))

/** Settings that may stand in `server.settings`: no secrets, and none that has its own value. */
const chartSettings = () =>
  settingsReference()
    .map(({ name }) => name)
    .filter((name) => !other.has(name) && !secretSettingNames().includes(name))
    .sort()

function schemaText(chart: string): string {
  const schema = JSON.parse(read(chart, 'values.schema.json')) as Schema
  const settings = schema.properties?.server?.properties?.settings
  if (settings) settings.propertyNames = { enum: chartSettings() }
  return compactJson(schema, 1000)
}

/** Every value as a row: path, type, default, description. */
export function valueRows(chart: string): { path: string; type: string; fallback: string; about: string }[] {
  const schema = JSON.parse(read(chart, 'values.schema.json')) as Schema
  const rows: ReturnType<typeof valueRows> = []
  const visit = (part: Schema, at: string, value: unknown) => {
    const target = part.$ref ? schema.definitions![part.$ref.replace('#/definitions/', '')]! : part
    const about = part.description ?? target.description ?? ''
    if (target.properties)
      for (const [name, each] of Object.entries(target.properties))
        visit(each, at ? `${at}.${name}` : name, (value as Record<string, unknown> | undefined)?.[name])
    else rows.push({ path: at, type: typeOf(part, target), fallback: shown(value), about })
    if (target.items?.properties)
      // The others are those of the defaults beside the list.
      for (const [name, each] of Object.entries(target.items.properties))
        if (target.items.properties.name === each || name === 'model') visit(each, `${at}[].${name}`, undefined)
  }
  visit(schema, '', parse(read(chart, 'values.yaml')))
  return rows.filter((row) => row.path !== 'global')
}

function typeOf(schema: Schema, target: Schema): string {
  if (target.enum) return target.enum.map((value) => `\`${value}\``).join(', ')
  const name = schema.$ref?.replace('#/definitions/', '')
  if (name === 'quantity') return 'size, as `8Gi`'
  if (name === 'secretName') return 'name of a Secret'
  if (name === 'secretKey') return 'key in a Secret'
  if (name) return name
  const type = [target.type ?? 'any'].flat().join(' or ')
  const { minimum, maximum } = target
  if (minimum === undefined) return type
  return `${type}, ${maximum === undefined ? `from ${minimum}` : `${minimum} to ${maximum}`}`
}

const shown = (value: unknown) => (value === undefined || value === '' ? '' : `\`${JSON.stringify(value)}\``)

const marker = '<!-- Values: written by `npm run docs` from values.schema.json and values.yaml. -->'

function readmeText(chart: string): string {
  const [intro] = read(chart, 'README.md').split(marker)
  const rows = valueRows(chart).map(
    ({ path: at, type, fallback, about }) => `| \`${at}\` | ${type} | ${fallback} | ${about} |`,
  )
  return `${intro}${marker}\n\n| value | type | default | what it is |\n|---|---|---|---|\n${rows.join('\n')}\n`
}

/** Files by path. */
export const chartFiles = (): Record<string, string> =>
  Object.fromEntries(
    charts.flatMap((chart) => [
      [`deploy/helm/${chart}/values.schema.json`, schemaText(chart)],
      [`deploy/helm/${chart}/README.md`, readmeText(chart)],
    ]),
  )

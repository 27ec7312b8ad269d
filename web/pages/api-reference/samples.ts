// An operation as programs call it.
import methods from 'virtual:client-methods'
import type { Description, Operation } from '../../lib/openapi.ts'
import { pythonValue } from '../../lib/python.ts'
import { exampleOf } from './schema.ts'

/** Everything that a request is made of. */
export interface Draft {
  /** Values of the path's parameters, by name. */
  path: Record<string, string>
  /** Without a `?`. */
  query: string
  /** JSON, or undefined for a request without a body. */
  body?: string
}

const prefixes: Record<string, string> = {
  dataset_id: 'ds_…',
  job_id: 'job_…',
  export_id: 'exp_…',
  webhook_id: 'wh_…',
  key_id: 'key_…',
  name: 'tickets',
}

export const mediaTypeOf = ({ requestBody }: Operation) => Object.keys(requestBody?.content ?? {})[0]
export const isForm = (operation: Operation) => mediaTypeOf(operation) === 'multipart/form-data'
const isStream = ({ responses }: Operation) =>
  Object.keys(Object.values(responses)[0]?.content ?? {}).find((type) => /ndjson|event-stream/.test(type))

export function draftOf(description: Description, operation: Operation): Draft {
  const path = Object.fromEntries(
    (operation.parameters ?? [])
      .filter((parameter) => parameter.in === 'path')
      .map(({ name }) => {
        if (name === 'model_id' && operation.path.startsWith('/hub'))
          return [name, 'HuggingFaceTB/SmolLM2-135M-Instruct']
        return [name, prefixes[name] ?? (name.endsWith('_id') ? `${name.slice(0, -3)}_…` : '…')]
      }),
  )
  const query = (operation.parameters ?? [])
    .filter((parameter) => parameter.in === 'query' && (parameter.required || parameter.name === 'limit'))
    .map(
      ({ name, schema }) => `${name}=${encodeURIComponent(String(exampleOf(description, schema, operation.id, name)))}`,
    )
    .join('&')
  const schema = operation.requestBody?.content['application/json']?.schema
  const body = schema && JSON.stringify(exampleOf(description, schema, operation.id), null, 2)
  return { path, query, ...(body && { body }) }
}

/** Below the service's address, with the base path. */
export const addressOf = (operation: Operation, { path, query }: Draft) =>
  `/v1${operation.path.replace(/\{(\w+)\}/g, (_, name: string) =>
    (path[name] ?? '').split('/').map(encodePart).join('/'),
  )}${query ? `?${query}` : ''}`

/** A placeholder stays readable. */
const encodePart = (part: string) => encodeURIComponent(part).replaceAll('%E2%80%A6', '…')

export const samplesOf = (operation: Operation, draft: Draft) => [
  { name: 'curl', code: curl(operation, draft) },
  { name: 'TypeScript', code: typescript(operation, draft) },
  { name: 'Python', code: python(operation, draft) },
]

function curl(operation: Operation, draft: Draft): string {
  const parts = [`curl ${isStream(operation) ? '-N ' : ''}'${location.origin}${addressOf(operation, draft)}'`]
  if (operation.method !== 'GET' && !(operation.method === 'POST' && (draft.body || isForm(operation))))
    parts.push(`-X ${operation.method}`)
  if (operation['x-scope'] !== 'public') parts.push('-H "Authorization: Bearer $TUNERY_KEY"')
  if (isForm(operation))
    parts.push('-F file=@examples.jsonl', ...(operation.id === 'uploadDataset' ? ['-F name=tickets'] : []))
  else if (draft.body) parts.push("-H 'Content-Type: application/json'", `-d @- <<'JSON'\n${draft.body}\nJSON`)
  return parts.join(' \\\n  ')
}

function typescript(operation: Operation, draft: Draft): string {
  const method = methods[`${operation.method} ${operation.path}`]
  const head = `import { Tunery } from 'tunery-client'

const tunery = new Tunery({ baseUrl: '${location.origin}/v1', apiKey: process.env.TUNERY_KEY })
`
  const json = draft.body ? ", 'content-type': 'application/json'" : ''
  const body = draft.body ? `\n  body: JSON.stringify(${indent(draft.body, '  ')}),` : ''
  if (!method)
    return `const response = await fetch('${location.origin}${addressOf(operation, draft)}', {
  method: '${operation.method}',
  headers: { authorization: \`Bearer \${process.env.TUNERY_KEY}\`${json} },${body}
})
console.log(await response.json())`
  const args = method.args.flatMap((name) => {
    if (name === 'body' || name === 'form')
      return [draft.body ?? (operation.id === 'uploadDataset' ? "{ name: 'tickets' }" : '{}')]
    if (name === 'query') return draft.query ? [asObject(draft.query)] : []
    if (name === 'file') return ['file']
    return [`'${draft.path[name] ?? '…'}'`]
  })
  const call = `tunery.${method.name}(${args.map(asCode).join(', ')})`
  const file = method.args.includes('file')
    ? `import { readFile } from 'node:fs/promises'\n${head}\nconst file = await readFile('examples.jsonl')`
    : head.trimEnd()
  if (/ndjson/.test(isStream(operation) ?? '')) return `${file}\nfor await (const event of ${call}) console.log(event)`
  return `${file}\nconst answer = await ${call}\nconsole.log(answer)`
}

/** JSON as people write it in a program. */
const asCode = (json: string) => json.replace(/^( *)"(\w+)":/gm, '$1$2:').replace(/"((?:[^"\\']|\\[^"u])*)"/g, "'$1'")

const asObject = (query: string) => {
  const pairs = [...new URLSearchParams(query)].map(
    ([name, value]) => `${name}: ${/^\d+$/.test(value) ? value : `'${value}'`}`,
  )
  return `{ ${pairs.join(', ')} }`
}

/** Methods of OpenAI's client for Python, by operation. */
const openaiMethods: Record<string, string> = {
  chatCompletions: 'chat.completions.create',
  completions: 'completions.create',
  embeddings: 'embeddings.create',
  createResponse: 'responses.create',
  listCallableModels: 'models.list',
  createOpenaiJob: 'fine_tuning.jobs.create',
  listOpenaiJobs: 'fine_tuning.jobs.list',
  createBatch: 'batches.create',
  listBatches: 'batches.list',
  listFiles: 'files.list',
}

function python(operation: Operation, draft: Draft): string {
  const method = openaiMethods[operation.id]
  const body = draft.body === undefined ? undefined : JSON.parse(draft.body)
  if (method) {
    const args = body ? `**${pythonValue(body)}` : ''
    const shown = operation.id === 'chatCompletions' ? 'answer.choices[0].message.content' : 'answer'
    return `import os
from openai import OpenAI

client = OpenAI(base_url="${location.origin}/v1", api_key=os.environ["TUNERY_KEY"])
answer = client.${method}(${args})
print(${shown})`
  }
  const lines = [`    "${operation.method}",`, `    "${location.origin}${addressOf(operation, draft)}",`]
  if (operation['x-scope'] !== 'public')
    lines.push(`    headers={"Authorization": f"Bearer {os.environ['TUNERY_KEY']}"},`)
  if (isForm(operation)) {
    if (operation.id === 'uploadDataset') lines.push('    data={"name": "tickets"},')
    lines.push('    files={"file": open("examples.jsonl", "rb")},')
  } else if (body !== undefined) lines.push(`    json=${pythonValue(body, '    ')},`)
  if (isStream(operation))
    return `import os
import httpx

with httpx.stream(
${lines.join('\n')}
    timeout=None,
) as response:
    for line in response.iter_lines():
        print(line)`
  return `import os
import httpx

response = httpx.request(
${lines.join('\n')}
)
response.raise_for_status()
print(response.json())`
}

const indent = (text: string, by: string) => text.replaceAll('\n', `\n${by}`)

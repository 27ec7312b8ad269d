// The requests of a batch's file: one JSON object a line.
import { type BatchEndpoint, type BatchError, batchRequestsMax } from '../../../contract/batches.ts'
import { pictureBodyBytes } from '../../../contract/route.ts'
import { hasTooManyParts, jsonPartsMax } from '../../../lib/http/json-limits.ts'
import { parseJson } from '../../../lib/json.ts'
import { LineTooLong, readNumberedJsonl } from '../../../lib/jsonl.ts'

/** Longest line, in characters: about as much as the body of a live request. */
const lineCharsMax = pictureBodyBytes
/** Problems that are reported of one file. */
const problemsMax = 100
const customIdMax = 512

export interface BatchLine {
  line: number
  custom_id: string
  body: { model: string } & Record<string, unknown>
}

/** Yields each request of a checked file. */
export async function* readLines(file: string): AsyncGenerator<BatchLine> {
  for await (const { line, json } of readNumberedJsonl(file, lineCharsMax)) {
    const { custom_id, body } = parseJson(json) as BatchLine
    yield { line, custom_id, body }
  }
}

interface CheckedFile {
  total: number
  /** The model of all requests; null if they name several. */
  model: string | null
  problems: BatchError[]
}

type Problem = Omit<BatchError, 'line'>
const problem = (code: string, message: string, param: string | null = null): Problem => ({ code, message, param })

/** Reads the whole file and reports what is wrong with its lines. The bodies are checked when they are answered. */
export async function checkLines(file: string, endpoint: BatchEndpoint, signal: AbortSignal): Promise<CheckedFile> {
  const problems: BatchError[] = []
  const ids = new Map<string, number>()
  const models = new Set<string>()
  let total = 0
  try {
    for await (const { line, json } of readNumberedJsonl(file, lineCharsMax)) {
      signal.throwIfAborted()
      if (++total > batchRequestsMax) {
        const tooMany = `The file has more than ${batchRequestsMax} requests. Divide it.`
        problems.push({ ...problem('too_many_requests', tooMany), line })
        break
      }
      const complex = hasTooManyParts(Buffer.from(json))
      const request = complex ? undefined : parseObject(json)
      const invalid = request
        ? problemOf(request, endpoint, ids)
        : complex
          ? problem('invalid_body', `It has more than ${jsonPartsMax} fields, lists and objects.`, 'body')
          : problem('invalid_json_line', 'The line is not a JSON object.')
      if (invalid) problems.push({ ...invalid, line })
      else {
        const { custom_id, body } = request as unknown as BatchLine
        ids.set(custom_id, line)
        models.add(body.model)
      }
      if (problems.length >= problemsMax) break
    }
  } catch (error) {
    if (!(error instanceof LineTooLong)) throw error
    const tooLong = 'The line is longer than 32 MiB, the most that a request may have.'
    problems.push({ ...problem('line_too_long', tooLong), line: error.line })
  }
  if (total === 0) problems.push({ ...problem('empty_file', 'The file has no requests.'), line: null })
  return { total, model: models.size === 1 ? [...models][0]! : null, problems }
}

function problemOf(
  { custom_id, method, url, body }: Record<string, unknown>,
  endpoint: BatchEndpoint,
  ids: ReadonlyMap<string, number>,
): Problem | undefined {
  if (typeof custom_id !== 'string' || custom_id === '' || custom_id.length > customIdMax)
    return problem('invalid_custom_id', `It must be a text of 1 to ${customIdMax} characters.`, 'custom_id')
  const first = ids.get(custom_id)
  if (first !== undefined)
    return problem('duplicate_custom_id', `'${custom_id}' is also the custom_id of line ${first}.`, 'custom_id')
  if (method !== 'POST') return problem('invalid_method', "It must be 'POST'.", 'method')
  if (url !== endpoint) return problem('mismatched_url', `It must be '${endpoint}', the batch's endpoint.`, 'url')
  if (typeof body !== 'object' || body === null || Array.isArray(body))
    return problem('invalid_body', 'It must be an object, the body of the request.', 'body')
  const { model, stream } = body as Record<string, unknown>
  if (typeof model !== 'string' || model === '') return problem('missing_model', 'It must name a model.', 'body.model')
  if (stream != null && stream !== false)
    return problem('invalid_stream', 'It cannot be true: a batch is answered whole.', 'body.stream')
  return undefined
}

function parseObject(json: string): Record<string, unknown> | undefined {
  try {
    const value = parseJson(json)
    return typeof value === 'object' && value !== null && !Array.isArray(value)
      ? (value as Record<string, unknown>)
      : undefined
  } catch {
    return undefined
  }
}

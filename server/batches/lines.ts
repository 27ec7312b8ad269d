// The requests of a batch's file: one JSON object a line.
import { type BatchEndpoint, type BatchError, batchRequestsMax } from '../../contract/batches.ts'
import { LineTooLong, readNumberedJsonl } from '../../lib/jsonl.ts'

/** Longest line, in characters: as much as one request may have. */
const lineCharsMax = 20e6
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
    const { custom_id, body } = JSON.parse(json) as BatchLine
    yield { line, custom_id, body }
  }
}

export interface CheckedFile {
  total: number
  /** The model of all requests; null if they name several. */
  model: string | null
  problems: BatchError[]
}

/** Reads the whole file and reports what is wrong with its lines. The bodies are checked when they are answered. */
export async function checkLines(file: string, endpoint: BatchEndpoint, signal: AbortSignal): Promise<CheckedFile> {
  const problems: BatchError[] = []
  const ids = new Map<string, number>()
  const models = new Set<string>()
  const report = (code: string, message: string, param: string | null, line: number | null) => {
    problems.push({ code, message, param, line })
  }
  let total = 0
  try {
    for await (const { line, json } of readNumberedJsonl(file, lineCharsMax)) {
      signal.throwIfAborted()
      if (++total > batchRequestsMax) {
        report('too_many_requests', `The file has more than ${batchRequestsMax} requests. Divide it.`, null, line)
        break
      }
      checkLine(json, line)
      if (problems.length >= problemsMax) break
    }
  } catch (error) {
    if (!(error instanceof LineTooLong)) throw error
    report('line_too_long', 'The line is longer than 20 MB.', null, error.line)
  }
  if (total === 0) report('empty_file', 'The file has no requests.', null, null)
  return { total, model: models.size === 1 ? [...models][0]! : null, problems }

  function checkLine(json: string, line: number): void {
    const request = parseObject(json)
    if (!request) return report('invalid_json_line', 'The line is not a JSON object.', null, line)
    const { custom_id, method, url, body } = request
    if (typeof custom_id !== 'string' || custom_id === '' || custom_id.length > customIdMax)
      return report(
        'invalid_custom_id',
        `'custom_id' must be a text of 1 to ${customIdMax} characters.`,
        'custom_id',
        line,
      )
    const first = ids.get(custom_id)
    if (first !== undefined)
      return report(
        'duplicate_custom_id',
        `The custom_id '${custom_id}' is also that of line ${first}.`,
        'custom_id',
        line,
      )
    ids.set(custom_id, line)
    if (method !== 'POST') return report('invalid_method', "'method' must be 'POST'.", 'method', line)
    if (url !== endpoint)
      return report('mismatched_url', `'url' must be '${endpoint}', the batch's endpoint.`, 'url', line)
    if (typeof body !== 'object' || body === null || Array.isArray(body))
      return report('invalid_body', "'body' must be an object, the body of the request.", 'body', line)
    const { model, stream } = body as Record<string, unknown>
    if (typeof model !== 'string' || model === '')
      return report('missing_model', "'body.model' must name a model.", 'body.model', line)
    if (stream != null && stream !== false)
      return report('invalid_stream', "'body.stream' cannot be true: a batch is answered whole.", 'body.stream', line)
    models.add(model)
  }
}

function parseObject(json: string): Record<string, unknown> | undefined {
  try {
    const value = JSON.parse(json)
    return typeof value === 'object' && value !== null && !Array.isArray(value) ? value : undefined
  } catch {
    return undefined
  }
}

// Uploads: one file and some text fields, as multipart/form-data.
import { createHash } from 'node:crypto'
import { Readable } from 'node:stream'
import type { FastifyRequest } from 'fastify'
import type { z } from 'zod'
import { asDisplayName } from '../../../contract/common.ts'
import { ApiError } from '../../../contract/errors.ts'
import { watchCredential } from './running-requests.ts'
import { validationError } from './validation.ts'

export interface FormFile<F> {
  file: NodeJS.ReadableStream
  filename: string
  /** The size of the whole form as its head announces it: about that of the file. 0: it does not say. */
  announced_bytes: number
  /** Aborts with an ApiError when the key or session of the request ends: also while the file is worked on. */
  ended: AbortSignal
  /** The form's text fields. Call it after the file has been read, as fields may follow the file. */
  fields(): Promise<F>
}

const limits = { files: 1, fields: 10, fieldSize: 10_000, fileSize: Number.POSITIVE_INFINITY }

/**
 * Reads a multipart form; passes its file, the part `partName`, to `handleFile` as a stream. Text fields may come
 * before or after it.
 */
export async function readMultipart<F, T>(
  request: FastifyRequest,
  schema: z.ZodType<F>,
  handleFile: (form: FormFile<F>) => Promise<T>,
  partName = 'file',
): Promise<T> {
  if (!request.isMultipart())
    throw new ApiError('not_multipart', `Send the file as multipart/form-data with a part named \`${partName}\`.`)
  const textFields: Record<string, string> = Object.create(null)
  const parts = request.parts({ limits })
  const parsed = (soFar = false) => {
    const result = schema.safeParse(textFields)
    if (result.success) return result.data
    const isMissing = ({ path: [name] }: z.core.$ZodIssue) => name !== undefined && !(String(name) in textFields)
    const issues = soFar ? result.error.issues.filter((issue) => !isMissing(issue)) : result.error.issues
    if (issues.length > 0) throw validationError(issues, 'form', schema)
    return undefined as F
  }
  for (;;) {
    const { value: part, done } = await nextPart(parts)
    if (done) throw new ApiError('file_missing', `The form has no part named \`${partName}\`.`, { param: partName })
    if (part.type === 'field') {
      addField(textFields, part)
      continue
    }
    if (part.fieldname !== partName) {
      part.file.resume()
      throw new ApiError(
        'file_missing',
        `The form has a file named '${part.fieldname}'; the part must be named \`${partName}\`.`,
        { param: partName },
      )
    }
    // Validate the fields before the file now, to fail before a large upload. Required ones may follow the file.
    parsed(true)
    const fields = async () => {
      await readRest(parts, textFields)
      await request.reauthorize?.()
      return parsed()
    }
    const filename = fileNameOf(part)
    const file = request.formDigest ? hashed(part.file) : { stream: part.file }
    if ('digest' in file) request.formDigest = () => digestOf(textFields, filename, file.digest())
    const announced_bytes = Number(request.headers['content-length'] ?? 0)
    const ended = new AbortController()
    // What the file takes while it comes is not kept for whoever may not send it any more.
    const stopWatching = watchCredential(request, (error) => {
      ended.abort(error)
      part.file.destroy(error)
    })
    return await handleFile({ file: file.stream, filename, announced_bytes, ended: ended.signal, fields })
      .catch((error) => {
        // The multipart parser has no error class or code for a truncated body.
        ended.signal.throwIfAborted()
        throw /multipart|Part terminated/.test(error.message) ? multipartError(error) : error
      })
      .finally(stopWatching)
  }
}

/**
 * Reads a whole form only for its digest, which equals the one that `readMultipart` computes.
 */
export async function digestMultipart(request: FastifyRequest): Promise<string> {
  if (!request.isMultipart()) return ''
  const textFields: Record<string, string> = Object.create(null)
  let [filename, digest] = ['', '']
  const parts = request.parts({ limits })
  for (;;) {
    const { value: part, done } = await nextPart(parts)
    if (done) return digestOf(textFields, filename, digest)
    if (part.type === 'field') {
      addField(textFields, part)
      continue
    }
    const file = hashed(part.file)
    for await (const _ of file.stream);
    filename = fileNameOf(part)
    digest = file.digest()
  }
}

const fileNameOf = ({ filename }: { filename: string | undefined }) => asDisplayName(filename ?? '') || 'file'

const digestOf = (fields: Record<string, string>, filename: string, file: string) =>
  JSON.stringify([Object.entries(fields).sort(), filename, file])

/** Wraps a stream to compute the SHA-256 of its bytes; `digest` is valid after all have been read. */
function hashed(file: NodeJS.ReadableStream): { stream: NodeJS.ReadableStream; digest(): string } {
  const hash = createHash('sha256')
  async function* bytes() {
    for await (const chunk of file) {
      hash.update(chunk as Buffer)
      yield chunk
    }
  }
  return { stream: Readable.from(bytes(), { objectMode: false }), digest: () => hash.copy().digest('hex') }
}

function addField(
  textFields: Record<string, string>,
  { fieldname, value }: { fieldname: string; value: unknown },
): void {
  if (!fieldname) throw new ApiError('not_multipart', 'The form has a part without a name.')
  if (typeof value !== 'string')
    throw new ApiError('invalid_request', `The form's field '${fieldname}' must be plain text.`, {
      details: { field: fieldname },
      param: fieldname,
    })
  if (fieldname in textFields)
    throw new ApiError('invalid_request', `The form has the field '${fieldname}' twice.`, {
      details: { field: fieldname },
      param: fieldname,
    })
  textFields[fieldname] = value
}

async function readRest(parts: ReturnType<FastifyRequest['parts']>, textFields: Record<string, string>): Promise<void> {
  for (;;) {
    const { value: part, done } = await nextPart(parts)
    if (done) return
    if (part.type === 'field') addField(textFields, part)
    else part.file.resume()
  }
}

async function nextPart(parts: ReturnType<FastifyRequest['parts']>) {
  try {
    return await parts.next()
  } catch (error) {
    throw multipartError(error as Error & { code?: string })
  }
}

function multipartError(error: Error & { code?: string }): Error {
  if (error.code === 'FST_FILES_LIMIT') return new ApiError('invalid_request', 'Send one file at a time.')
  return new ApiError('not_multipart', `The form could not be read: ${error.message}`)
}

// Uploads: one file and some text fields, as multipart/form-data.
import { createHash } from 'node:crypto'
import { Readable } from 'node:stream'
import type { FastifyRequest } from 'fastify'
import type { z } from 'zod'
import { asDisplayName } from '../../contract/common.ts'
import { ApiError } from '../../contract/errors.ts'
import { validationError } from './validation.ts'

export interface FormFile<F> {
  file: NodeJS.ReadableStream
  filename: string
  /** Called when the file has been read: a form's fields may come after it. */
  fields(): Promise<F>
}

const limits = { files: 1, fields: 10, fieldSize: 10_000, fileSize: Number.POSITIVE_INFINITY }

/** Reads a form part by part: `take` gets its file as it arrives, whether its fields come before or after it. */
export async function readForm<F, T>(
  request: FastifyRequest,
  schema: z.ZodType<F>,
  take: (form: FormFile<F>) => Promise<T>,
): Promise<T> {
  if (!request.isMultipart())
    throw new ApiError('not_multipart', 'Send the file as multipart/form-data with a part named `file`.')
  const given: Record<string, string> = {}
  const parts = request.parts({ limits })
  const parsed = () => {
    const result = schema.safeParse(given)
    if (!result.success) throw validationError(result.error.issues, 'form', schema)
    return result.data
  }
  for (;;) {
    const { value: part, done } = await next(parts)
    if (done) throw new ApiError('file_missing', 'The form has no part named `file`.')
    if (part.type === 'field') {
      keep(given, part)
      continue
    }
    if (part.fieldname !== 'file') {
      part.file.resume()
      throw new ApiError(
        'file_missing',
        `The form has a file named '${part.fieldname}'; the part must be named \`file\`.`,
      )
    }
    // A mistake in the fields that came first need not wait for a gigabyte to arrive.
    parsed()
    const fields = async () => {
      await readRest(parts, given)
      await request.askAgain?.()
      return parsed()
    }
    const filename = nameOf(part)
    const file = request.formDigest ? hashed(part.file) : { stream: part.file }
    if ('digest' in file) request.formDigest = () => digestOf(given, filename, file.digest())
    return await take({ file: file.stream, filename, fields }).catch((error) => {
      // The form's reader has no class or code for a body that ends too early.
      throw /multipart|Part terminated/.test(error.message) ? multipartError(error) : error
    })
  }
}

/**
 * Reads a form to its end, for nothing but its digest: the same as `readForm` gives to a request that asked for one.
 */
export async function digestForm(request: FastifyRequest): Promise<string> {
  if (!request.isMultipart()) return ''
  const given: Record<string, string> = {}
  let [filename, digest] = ['', '']
  const parts = request.parts({ limits })
  for (;;) {
    const { value: part, done } = await next(parts)
    if (done) return digestOf(given, filename, digest)
    if (part.type === 'field') {
      keep(given, part)
      continue
    }
    const file = hashed(part.file)
    for await (const _ of file.stream);
    filename = nameOf(part)
    digest = file.digest()
  }
}

const nameOf = ({ filename }: { filename: string | undefined }) => asDisplayName(filename ?? '') || 'file'

const digestOf = (fields: Record<string, string>, filename: string, file: string) =>
  JSON.stringify([Object.entries(fields).sort(), filename, file])

/** The same bytes, with their SHA-256 when they have been read. */
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

function keep(given: Record<string, string>, { fieldname, value }: { fieldname: string; value: unknown }): void {
  if (!fieldname) throw new ApiError('not_multipart', 'The form has a part without a name.')
  if (typeof value !== 'string')
    throw new ApiError('invalid_request', `The form's field '${fieldname}' must be plain text.`, {
      details: { field: fieldname },
    })
  given[fieldname] = value
}

async function readRest(parts: ReturnType<FastifyRequest['parts']>, given: Record<string, string>): Promise<void> {
  for (;;) {
    const { value: part, done } = await next(parts)
    if (done) return
    if (part.type === 'field') keep(given, part)
    else part.file.resume()
  }
}

async function next(parts: ReturnType<FastifyRequest['parts']>) {
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

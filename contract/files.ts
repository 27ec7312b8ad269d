// OpenAI's files: the datasets of the account under that API's names, and the files that are no datasets.
import { z } from 'zod'
import { digits, ListQuery } from './common.ts'
import { routesOf } from './route.ts'

/** What a file may be uploaded for. Files for `fine-tune` are datasets. */
export const uploadPurposes = ['fine-tune', 'batch', 'evals', 'user_data'] as const

export const filePurposes = [...uploadPurposes, 'fine-tune-results', 'batch_output'] as const
export const FilePurpose = z.enum(filePurposes)
export type FilePurpose = z.infer<typeof FilePurpose>

export const File = z.object({
  id: z.string(),
  object: z.literal('file'),
  bytes: z.int(),
  created_at: z.int().describe('Unix seconds.'),
  expires_at: z.int().nullable().describe('When the file is deleted. Null: when you delete it.'),
  filename: z.string(),
  purpose: FilePurpose,
  status: z
    .enum(['uploaded', 'processed', 'error'])
    .describe('`uploaded`: the rows are being read. `error`: rows cannot be trained on, or the file cannot be read.'),
  status_details: z.string().nullable().describe('What is wrong with a file whose status is `error`.'),
})
export type File = z.infer<typeof File>

export const fileExpiry = { min_seconds: 3600, max_seconds: 2_592_000 }

/** Text fields of the upload form; the file is the part `file`. */
export const FileFields = z.strictObject({
  purpose: z
    .enum(uploadPurposes, { error: `must be one of ${uploadPurposes.map((each) => `'${each}'`).join(', ')}` })
    .describe('Rows to train on (`fine-tune`), requests (`batch`), or a file of any other kind.'),
  'expires_after[anchor]': z.literal('created_at').optional(),
  'expires_after[seconds]': digits(fileExpiry.min_seconds, fileExpiry.max_seconds)
    .optional()
    .describe('After how long the file is deleted. Not for `fine-tune`, which is kept until you delete it.'),
})
export type FileFields = z.infer<typeof FileFields>

/** The query of a list in OpenAI's shape. */
export const CursorQuery = z.looseObject({
  limit: ListQuery.shape.limit,
  after: z.string().max(300).optional().describe('The id after which the page begins.'),
})
export type CursorQuery = z.infer<typeof CursorQuery>

/**
 * The query of a list with metadata: pairs that its objects must have come as `metadata[key]=value`; `metadata=null` or
 * `metadata=` finds those without any.
 */
export const MetadataQuery = CursorQuery.extend({
  metadata: z
    .enum(['', 'null'], { error: "must be null; write pairs as 'metadata[key]=value'" })
    .optional()
    .describe('`null`: those without metadata. Pairs are written as `metadata[key]=value`.'),
})

/** A list in OpenAI's shape. */
export const openaiList = <T extends z.ZodType>(item: T) =>
  z.object({
    object: z.literal('list'),
    data: z.array(item),
    first_id: z.string().nullable(),
    last_id: z.string().nullable(),
    has_more: z.boolean(),
  })

const route = routesOf({ tag: 'Files', openai: true })
const FileParams = z.object({ file_id: z.string() })

export const FileQuery = CursorQuery.extend({
  limit: digits(1, 10_000).default(10_000).describe('1 to 10,000. Default 10,000.'),
  order: z.enum(['asc', 'desc']).default('desc').describe('By time of creation. Default desc: newest first.'),
  purpose: FilePurpose.optional().describe('Those with this purpose.'),
})
export type FileQuery = z.infer<typeof FileQuery>

export const uploadFile = route('POST', '/files', {
  scope: 'datasets:write',
  summary: 'Upload a file; one for `fine-tune` is also a dataset',
  consumes: 'multipart/form-data',
  form: FileFields,
  responses: { 200: File },
  creates: true,
})
export const listFiles = route('GET', '/files', {
  scope: 'datasets:read',
  summary: 'The files of the account, its datasets among them',
  query: FileQuery,
  responses: { 200: openaiList(File) },
})
export const getFile = route('GET', '/files/{file_id}', {
  scope: 'datasets:read',
  summary: 'One file',
  params: FileParams,
  responses: { 200: File },
})
export const getFileContent = route('GET', '/files/{file_id}/content', {
  scope: 'datasets:read',
  summary: 'The bytes of a file, whole or a range of them',
  params: FileParams,
  produces: 'application/octet-stream',
  responses: { 200: z.string() },
})
export const deleteFile = route('DELETE', '/files/{file_id}', {
  scope: 'datasets:write',
  summary: 'Delete a file that no job or batch needs',
  params: FileParams,
  responses: { 200: z.object({ id: z.string(), object: z.literal('file'), deleted: z.literal(true) }) },
})

export const Upload = z.object({
  id: z.string(),
  object: z.literal('upload'),
  bytes: z.int().describe('Size of the whole file, as announced.'),
  created_at: z.int(),
  expires_at: z.int().describe('Unix seconds. An upload that is not completed by then is deleted.'),
  filename: z.string(),
  purpose: z.enum(uploadPurposes),
  status: z.enum(['pending', 'completed', 'cancelled', 'expired']),
  file: File.nullable().describe('The file of a completed upload.'),
})
export type Upload = z.infer<typeof Upload>

export const UploadPart = z.object({
  id: z.string(),
  object: z.literal('upload.part'),
  created_at: z.int(),
  upload_id: z.string(),
})
export type UploadPart = z.infer<typeof UploadPart>

/** Largest part, in bytes. */
export const partBytesMax = 64 * 1024 * 1024
/** Parts of an upload, at most. */
export const partsMax = 10_000
const UploadParams = z.object({ upload_id: z.string() })

export const CreateUpload = z.looseObject({
  filename: z.string().min(1).max(1000),
  purpose: FileFields.shape.purpose,
  bytes: z.int().min(1).max(Number.MAX_SAFE_INTEGER).describe('Size of the whole file.'),
  mime_type: z.string().min(1).max(200).describe('Not used: the content decides.'),
  expires_after: z
    .looseObject({
      anchor: z.literal('created_at'),
      seconds: z.int().min(fileExpiry.min_seconds).max(fileExpiry.max_seconds),
    })
    .nullish(),
})
export type CreateUpload = z.infer<typeof CreateUpload>

export const createUpload = route('POST', '/uploads', {
  creates: true,
  scope: 'datasets:write',
  summary: 'Begin to upload a large file in parts',
  body: CreateUpload,
  responses: { 200: Upload },
})
export const addUploadPart = route('POST', '/uploads/{upload_id}/parts', {
  scope: 'datasets:write',
  summary: 'Add a part of up to 64 MiB; parts may be sent in any order and at once',
  params: UploadParams,
  consumes: 'multipart/form-data',
  form: z.strictObject({}),
  file_part: 'data',
  responses: { 200: UploadPart },
})
export const completeUpload = route('POST', '/uploads/{upload_id}/complete', {
  scope: 'datasets:write',
  summary: 'Join the parts, in the order that is given here, to a file',
  params: UploadParams,
  body: z.looseObject({
    part_ids: z.array(z.string().max(100)).min(1).max(partsMax),
    md5: z.string().max(100).nullish().describe('MD5 of the whole file, in hex or base64; checked if it is given.'),
  }),
  responses: { 200: Upload },
})
export const cancelUpload = route('POST', '/uploads/{upload_id}/cancel', {
  scope: 'datasets:write',
  frees: true,
  summary: 'Give up an upload and delete its parts',
  params: UploadParams,
  body: z.looseObject({}).nullish(),
  responses: { 200: Upload },
})

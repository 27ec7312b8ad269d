import type { FastifyInstance } from 'fastify'
import {
  addUploadPart,
  cancelUpload,
  completeUpload,
  createUpload,
  deleteFile,
  FileFields,
  getFile,
  getFileContent,
  listFiles,
  uploadFile,
} from '../../../contract/files.ts'
import { mount } from '../../platform/http/mount.ts'
import { readMultipart } from '../../platform/http/multipart.ts'
import { sendFile } from '../../platform/http/send-file.ts'
import type { Files } from './service.ts'
import type { Uploads } from './uploads.ts'

export function fileRoutes(app: FastifyInstance, files: Files, uploads: Uploads): void {
  mount(app, uploadFile, ({ request, caller }) =>
    readMultipart(request, FileFields, (form) => files.upload(caller, form)),
  )
  mount(app, listFiles, ({ caller, query }) => files.list(caller.account_id, query))
  mount(app, getFile, ({ caller, params }) => files.get(caller.account_id, params.file_id))
  mount(app, getFileContent, async ({ caller, params, request, reply }) =>
    sendFile(await files.content(caller.account_id, params.file_id), request, reply),
  )
  mount(app, deleteFile, ({ caller, params }) => files.delete(caller, params.file_id))
  mount(app, createUpload, ({ caller, body }) => uploads.create(caller, body))
  mount(app, addUploadPart, ({ request, caller, params }) =>
    readMultipart(
      request,
      addUploadPart.form,
      (form) => uploads.addPart(caller.account_id, params.upload_id, form),
      'data',
    ),
  )
  mount(app, completeUpload, ({ caller, params, body }) => uploads.complete(caller, params.upload_id, body))
  mount(app, cancelUpload, ({ caller, params }) => uploads.cancel(caller, params.upload_id))
}

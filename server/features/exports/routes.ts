import type { FastifyInstance } from 'fastify'
import {
  createExport,
  deleteExport,
  downloadExport,
  exportEvents,
  getExport,
  listExports,
} from '../../../contract/exports.ts'
import { answered, mount } from '../../platform/http/mount.ts'
import { sendEvents } from '../../platform/http/ndjson-response.ts'
import { sendFile } from '../../platform/http/send-file.ts'
import type { Exports } from './service.ts'

export function exportRoutes(app: FastifyInstance, exports: Exports, stopping: AbortSignal): void {
  mount(app, createExport, ({ caller, body }) => exports.create(caller, body))
  mount(app, listExports, ({ caller, query }) => exports.list(caller.account_id, query))
  mount(app, getExport, ({ caller, params }) => exports.get(caller.account_id, params.export_id))
  mount(app, deleteExport, ({ caller, params }) => exports.delete(caller, params.export_id))
  mount(app, exportEvents, ({ caller, params, query, reply }) =>
    sendEvents(reply, stopping, (signal) => exports.events(caller.account_id, params.export_id, query.after, signal)),
  )
  mount(app, downloadExport, async ({ caller, params, query, request, reply }) => {
    const file = await exports.file(caller.account_id, params.export_id, query.file)
    // The ETag here is the SHA-256; a bucket has another, so conditions are answered here.
    const { headers, method } = request.raw
    const conditional = headers['if-range'] !== undefined || headers['if-none-match'] !== undefined
    const url = method === 'GET' && !conditional ? await exports.downloadUrl(params.export_id, file) : undefined
    if (url !== undefined) {
      await reply.header('cache-control', 'private, no-store').redirect(url, 307)
      return answered
    }
    await exports.ensureLocal(params.export_id)
    return sendFile(file, request, reply)
  })
}

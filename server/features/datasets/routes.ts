import type { FastifyInstance } from 'fastify'
import {
  changeDataset,
  deleteDataset,
  getDataset,
  listDatasetRows,
  listDatasets,
  previewDataset,
  UploadFields,
  uploadDataset,
  validateDataset,
} from '../../../contract/datasets.ts'
import { mount } from '../../platform/http/mount.ts'
import { readMultipart } from '../../platform/http/multipart.ts'
import { presence } from '../../platform/http/presence.ts'
import type { Datasets } from './service.ts'

export function datasetRoutes(app: FastifyInstance, datasets: Datasets, stopping: AbortSignal): void {
  mount(app, uploadDataset, ({ request, caller }) =>
    readMultipart(request, UploadFields, (form) => datasets.uploads.upload(caller, form)),
  )
  mount(app, listDatasets, ({ caller, query }) => datasets.list(caller.account_id, query))
  mount(app, getDataset, ({ caller, params }) => datasets.get(caller.account_id, params.dataset_id))
  mount(app, changeDataset, ({ caller, params, body }) => datasets.change(caller, params.dataset_id, body))
  mount(app, deleteDataset, ({ caller, params }) => datasets.delete(caller, params.dataset_id))
  mount(app, listDatasetRows, ({ caller, params, query }) =>
    datasets.listRows(caller.account_id, params.dataset_id, query),
  )
  mount(app, validateDataset, ({ caller, params, query, reply }) =>
    datasets.validate(caller.account_id, params.dataset_id, query, presence(reply, stopping)),
  )
  mount(app, previewDataset, ({ caller, params, query, reply }) =>
    datasets.preview(caller.account_id, params.dataset_id, query, presence(reply, stopping)),
  )
}

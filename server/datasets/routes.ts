import type { FastifyInstance } from 'fastify'
import { deleteDataset, getDataset, listDatasets, previewDataset, UploadFields, uploadDataset, validateDataset } from '../../contract/datasets.ts'
import { readForm } from '../http/form.ts'
import { mount } from '../http/mount.ts'
import type { Datasets } from './service.ts'

export function datasetRoutes(app: FastifyInstance, datasets: Datasets): void {
  mount(app, uploadDataset, ({ request, caller }) => readForm(request, UploadFields, (form) => datasets.upload(caller, form)))
  mount(app, listDatasets, ({ caller, query }) => datasets.list(caller.account_id, query))
  mount(app, getDataset, ({ caller, params }) => datasets.get(caller.account_id, params.dataset_id))
  mount(app, deleteDataset, ({ caller, params }) => datasets.delete(caller, params.dataset_id))
  mount(app, validateDataset, ({ caller, params, query }) => datasets.validate(caller.account_id, params.dataset_id, query.model_id))
  mount(app, previewDataset, ({ caller, params, query }) => datasets.preview(caller.account_id, params.dataset_id, query))
}

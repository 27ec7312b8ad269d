import { useMutation, useQueryClient } from '@tanstack/react-query'
import { useNavigate } from '@tanstack/react-router'
import { Plus, Rocket } from 'lucide-react'
import { useState } from 'react'
import type { Deployment } from '../../../sdk/index.ts'
import { tunery } from '../../lib/api.ts'
import { useDeployable } from '../../lib/deployable.ts'
import { fieldError } from '../../lib/errors.ts'
import { usePages } from '../../lib/pages.ts'
import { refresh_ms } from '../../lib/query.ts'
import { useMay } from '../../lib/session.ts'
import { Button } from '../../ui/button.tsx'
import { Combobox } from '../../ui/choices.tsx'
import { Badge, EmptyState, FormError, Loaded, Status } from '../../ui/feedback.tsx'
import { Field, Form, FormButtons, Input } from '../../ui/field.tsx'
import { Card, Page } from '../../ui/layout.tsx'
import { Dialog } from '../../ui/popups.tsx'
import { type Column, Table } from '../../ui/table.tsx'
import { Code, RelativeTime } from '../../ui/values.tsx'

const columns: readonly Column<Deployment>[] = [
  { id: 'name', header: 'Name', grow: true, cell: (each) => each.name },
  {
    id: 'status',
    header: 'Status',
    cell: (each) => (
      <span className="flex gap-1.5">
        <Status status={each.status} />
        {each.pending && <Badge tone="accent">gate pending</Badge>}
      </span>
    ),
  },
  { id: 'model', header: 'Serves', from: 'md', cell: (each) => <Code>{each.model}</Code> },
  { id: 'base', header: 'Base', from: 'lg', cell: (each) => each.base_model_id },
  {
    id: 'changed',
    header: 'Changed',
    align: 'right',
    from: 'sm',
    cell: (each) => <RelativeTime time={each.updated_at} />,
  },
]

export default function DeploymentsPage() {
  const mayWrite = useMay('deployments:write')
  const [creating, setCreating] = useState(false)
  const { query, rows, more } = usePages(
    ['deployments', 'list', {}],
    (options) => tunery.deployments.list({ limit: 50 }, options),
    { refresh_ms: 2 * refresh_ms },
  )
  const create = mayWrite && (
    <Button variant="primary" icon={<Plus aria-hidden />} onClick={() => setCreating(true)}>
      Deploy a model
    </Button>
  )
  return (
    <Page
      title="Deployments"
      description="A name that programs call, and the model that answers. The model can change without a change of the program."
      actions={create}
    >
      <Card flush>
        <Loaded query={query}>
          {() => (
            <Table
              label="Deployments"
              columns={columns}
              rows={rows ?? []}
              rowId={({ id }) => id}
              link={({ name }) => ({ to: '/deployments/$name', params: { name } })}
              more={more}
              empty={
                <EmptyState icon={<Rocket aria-hidden />} title="No model has a name yet" action={create}>
                  Give a tuned model a name, and any program for OpenAI's API can call it.
                </EmptyState>
              }
            />
          )}
        </Loaded>
      </Card>
      {creating && <CreateDeployment onClose={() => setCreating(false)} />}
    </Page>
  )
}

function CreateDeployment({ onClose }: { onClose: () => void }) {
  const [model, setModel] = useState<string | null>(null)
  const [name, setName] = useState('')
  const navigate = useNavigate()
  const client = useQueryClient()
  const choices = useDeployable()
  const create = useMutation({
    mutationFn: () => tunery.deployments.create({ model: model!, name }),
    onSuccess: async (made) => {
      await client.invalidateQueries({ queryKey: ['deployments'] })
      await navigate({ to: '/deployments/$name', params: { name: made.name } })
    },
  })
  return (
    <Dialog open onOpenChange={(open) => !open && onClose()} title="Deploy a model">
      <Form onSubmit={() => create.mutate()}>
        <Field label="Model" error={fieldError(create.error, 'model')}>
          <Combobox value={model} onChange={setModel} choices={choices.data ?? []} placeholder="Choose a model" />
        </Field>
        <Field
          label="Name"
          help="What programs send as model: a-z, 0-9, dot, underscore and hyphen."
          error={fieldError(create.error, 'name')}
        >
          <Input value={name} onChange={(event) => setName(event.target.value.toLowerCase())} maxLength={64} />
        </Field>
        <FormError error={create.error} fields={['model', 'name']} />
        <FormButtons onCancel={onClose} busy={create.isPending} disabled={!model || !name}>
          Deploy
        </FormButtons>
      </Form>
    </Dialog>
  )
}

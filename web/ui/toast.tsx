// Short messages on what has just happened. An error that someone must act on belongs into the page instead.
import { Toast } from '@base-ui/react/toast'
import { CircleAlert, CircleCheck, Info, X } from 'lucide-react'
import type { ReactNode } from 'react'
import { IconButton } from './button.tsx'

const manager = Toast.createToastManager()

type Kind = 'good' | 'bad' | 'info'
const add = (type: Kind) => (title: string, description?: string) => {
  manager.add({ title, description, type, timeout: type === 'bad' ? 12_000 : 5000 })
}

/** `toast.good('Deployed')`, `toast.bad('Not deployed', error.message)`, `toast.info('…')`; from anywhere. */
export const toast = { good: add('good'), bad: add('bad'), info: add('info') }

/** For `onError` of a mutation: `useMutation({ …, onError: toastError('The job was not cancelled') })`. */
export const toastError = (title: string) => (error: Error) => toast.bad(title, error.message)

const icons: Record<Kind, ReactNode> = {
  good: <CircleCheck aria-hidden className="text-good" />,
  bad: <CircleAlert aria-hidden className="text-bad" />,
  info: <Info aria-hidden className="text-accent-ink" />,
}

const viewportClass = 'fixed right-4 bottom-4 z-50 flex w-[min(24rem,calc(100vw-2rem))] flex-col gap-2 outline-none'

export function Toasts({ children }: { children: ReactNode }) {
  return (
    <Toast.Provider toastManager={manager} limit={4}>
      {children}
      <Toast.Portal>
        <Toast.Viewport className={viewportClass}>
          <List />
        </Toast.Viewport>
      </Toast.Portal>
    </Toast.Provider>
  )
}

function List() {
  const { toasts } = Toast.useToastManager()
  return toasts.map((toast) => (
    <Toast.Root
      key={toast.id}
      toast={toast}
      className={
        'rounded-lg bg-raised p-3 shadow-pop ring-1 ring-line transition-[opacity,translate] duration-150 ' +
        'data-starting-style:translate-y-2 data-starting-style:opacity-0 data-ending-style:opacity-0 ' +
        'data-limited:hidden'
      }
    >
      <Toast.Content className="flex items-start gap-2.5">
        <span className="mt-0.5 [&_svg]:size-4">{icons[(toast.type ?? 'info') as Kind]}</span>
        <div className="min-w-0 flex-1">
          <Toast.Title className="font-medium" />
          <Toast.Description className="text-sm text-muted" />
        </div>
        <Toast.Close render={<IconButton label="Dismiss" size="sm" className="-my-1" icon={<X aria-hidden />} />} />
      </Toast.Content>
    </Toast.Root>
  ))
}

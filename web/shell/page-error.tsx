import { type ErrorComponentProps, useRouter } from '@tanstack/react-router'
import { useEffect } from 'react'
import { ErrorState } from '../ui/feedback.tsx'

const reloadedKey = 'tunery.reloaded'

/** Stands where a page failed; the rest of the dashboard keeps working. */
export function PageError({ error, reset }: ErrorComponentProps) {
  const router = useRouter()
  // A newer build has replaced the file of a page that was not loaded yet: load everything again, once.
  const stale = /dynamically imported module|module script failed|preload/i.test(String(error))
  useEffect(() => {
    if (!stale || sessionStorage.getItem(reloadedKey) === location.pathname) return
    sessionStorage.setItem(reloadedKey, location.pathname)
    location.reload()
  }, [stale])
  return (
    <ErrorState
      error={stale ? new Error('This page could not be loaded. The service may have been updated: try again.') : error}
      retry={() => {
        if (stale) return location.reload()
        reset()
        void router.invalidate()
      }}
    />
  )
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "comm/thread_event.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

void dp_thread_event_init(struct dp_thread_event *event, const pthread_condattr_t *monotonic)
{
    pthread_mutex_init(&event->lock, NULL);
    pthread_cond_init(&event->changed, monotonic);
    event->mail_end = &event->mail;
}

void dp_thread_event_fini(struct dp_thread_event *event)
{
    dp_mail_free(event->mail);
    pthread_cond_destroy(&event->changed);
    pthread_mutex_destroy(&event->lock);
}

struct timespec dp_thread_timespec(int64_t ns)
{
    return (struct timespec){.tv_sec = ns / DP_NS_PER_S, .tv_nsec = ns % DP_NS_PER_S};
}

void dp_thread_event_sleep(struct dp_thread_event *event, unsigned seen, int64_t until_ns)
{
    const struct timespec until = dp_thread_timespec(until_ns);
    int err = 0;

    pthread_mutex_lock(&event->lock);
    atomic_store(&event->sleeping, true);
    while (!err && atomic_load(&event->count) == seen)
        err = pthread_cond_timedwait(&event->changed, &event->lock, &until);
    atomic_store(&event->sleeping, false);
    pthread_mutex_unlock(&event->lock);
}

void dp_thread_event_post(struct dp_thread_event *event, int from, const void *message, size_t len)
{
    struct dp_mail *mail = malloc(sizeof(*mail) + len);

    if (!mail)
        return;
    mail->next = NULL;
    mail->from = from;
    mail->len = len;
    memcpy(mail->bytes, message, len);
    pthread_mutex_lock(&event->lock);
    *event->mail_end = mail;
    event->mail_end = &mail->next;
    atomic_store(&event->has_mail, true);
    pthread_mutex_unlock(&event->lock);
    dp_thread_event_wake(event);
}

struct dp_mail *dp_thread_event_take(struct dp_thread_event *event)
{
    if (!atomic_load(&event->has_mail))
        return NULL;
    pthread_mutex_lock(&event->lock);
    struct dp_mail *all = event->mail;
    event->mail = NULL;
    event->mail_end = &event->mail;
    atomic_store(&event->has_mail, false);
    pthread_mutex_unlock(&event->lock);
    return all;
}

void dp_mail_free(struct dp_mail *mail)
{
    while (mail) {
        struct dp_mail *next = mail->next;
        free(mail);
        mail = next;
    }
}
